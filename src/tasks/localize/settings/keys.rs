//! The keys of settings, and which of them contradict each other.

/// The section of a manifest that has a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// `[fit]`
    Fit,
    /// `[camera]`
    Camera,
    /// `[detect]`
    Detect,
}

/// Every key: its section in manifests, and its name, which queries use as well.
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

/// The keys for what a spot must exceed, each with its detection method.
const LEAST_OF: [(&str, &str); 3] =
    [("photons_min", "contrast"), ("noise_min", "contrast"), ("gradient_min", "net-gradient")];

/// The side of ROIs that are cut out; ROIs that are sent have their own.
pub(super) const BOX: &str = "box_px";

/// The keys that apply only to spots whose shape depends on z.
pub(super) const OF_Z: [&str; 5] = ["gamma_um", "depth_um", "a", "b", "z_um"];

/// Checks that what one manifest, or one request, says about finding spots is consistent. What a request says replaces what the manifest
/// says. Each key within one of them is obeyed or refused, whatever their order.
///
/// # Errors
/// The key that another one contradicts, and a message that begins with the key.
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
        // Any other word is not a method, which is an error where it is set.
        Some(method) if method != of && LEAST_OF.iter().any(|(_, of)| *of == method) => Err((
            key,
            format!("{key} is of the method {of}, but method is {method:?}: leave one of them out"),
        )),
        _ => Ok(()),
    }
}
