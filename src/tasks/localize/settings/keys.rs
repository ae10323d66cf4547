//! The keys of settings, and which of them contradict each other.

/// Where a manifest has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// `[fit]`
    Fit,
    /// `[camera]`
    Camera,
    /// `[detect]`
    Detect,
}

/// Every key: where manifests have it, and its name, which is that of a query's as well.
pub const KEYS: [(Section, &str); 23] = [
    (Section::Fit, "psf"),
    (Section::Fit, "sigma_px"),
    (Section::Fit, "gamma_um"),
    (Section::Fit, "depth_um"),
    (Section::Fit, "a"),
    (Section::Fit, "b"),
    (Section::Fit, "z_um"),
    (Section::Fit, "box_px"),
    (Section::Fit, "iterations_max"),
    (Section::Fit, "preset"),
    (Section::Camera, "pixel_nm"),
    (Section::Camera, "offset"),
    (Section::Camera, "gain"),
    (Section::Camera, "read_noise"),
    (Section::Camera, "excess_noise"),
    (Section::Camera, "corner_px"),
    (Section::Detect, "method"),
    (Section::Detect, "photons_min"),
    (Section::Detect, "noise_min"),
    (Section::Detect, "gradient_min"),
    (Section::Detect, "radius_px"),
    (Section::Detect, "border"),
    (Section::Detect, "spots_max"),
];

/// The keys that say what a spot must exceed, each with the method that it is of.
const LEAST_OF: [(&str, &str); 3] =
    [("photons_min", "contrast"), ("noise_min", "contrast"), ("gradient_min", "net-gradient")];

/// How large ROIs are cut; those that are sent have their size.
pub(super) const BOX: &str = "box_px";

/// The keys that are of spots whose shape says how high they are.
pub(super) const OF_Z: [&str; 5] = ["gamma_um", "depth_um", "a", "b", "z_um"];

/// Whether what one manifest, or one request, says of finding spots goes together. A request's word on it takes the place of the
/// manifest's; what one of them says is heeded or refused, whatever its order.
///
/// # Errors
/// The key that another one contradicts, and what is wrong, beginning with the key.
pub fn agree(said: &[(impl AsRef<str>, impl AsRef<str>)]) -> Result<(), (&'static str, String)> {
    let value = |key: &str| {
        let found = said.iter().find(|(said, _)| said.as_ref() == key);
        found.map(|(_, value)| value.as_ref().trim())
    };
    let mut leasts = LEAST_OF.into_iter().filter(|(key, _)| value(key).is_some());
    let (Some((key, of)), second) = (leasts.next(), leasts.next()) else { return Ok(()) };
    if let Some((second, _)) = second {
        return Err((
            second,
            format!("{second} is given beside {key}: give the one that a spot must exceed"),
        ));
    }
    match value("method") {
        // Another word is no method at all, which is told where it is set.
        Some(method) if method != of && LEAST_OF.iter().any(|(_, of)| *of == method) => Err((
            key,
            format!("{key} is of the method {of}, but method is {method:?}: leave one of them out"),
        )),
        _ => Ok(()),
    }
}
