//! The settings as a reply's head tells them, by the keys of manifests and queries: what made its rows.

use super::{CameraValue, Least, Model, Settings, Words};

impl Settings {
    /// The settings that made rows from frames of this width and height, or from ROIs if `found` is false, beside those that a
    /// [`Schema`](super::Schema) has a place for. Those that had no effect are left out. Numbers are text; a camera's map is the name of its
    /// file.
    pub fn told(&self, size: [usize; 2], found: bool) -> Vec<(String, String)> {
        let mut told = Vec::new();
        let mut tell = |key: &str, value: String| told.push((key.to_owned(), value));
        if matches!(self.psf, Model::Xynbs | Model::Xynbsxsy) {
            let [x, y] = self.sigma_px;
            tell("sigma_px", format!("{x} {y}"));
        }
        if self.psf == Model::Xyznb {
            let [low, high] = self.astigmatism.z_um;
            tell("z_um", format!("{low} {high}"));
        }
        tell("box_px", if found { self.box_px() } else { size[0] }.to_string());
        tell("iterations_max", self.iterations_max.to_string());
        for (key, value) in [("offset", &self.offset), ("gain", &self.gain), ("read_noise", &self.read_noise)]
        {
            let file = || self.maps.iter().find(|(of, _)| of == key).map(|(_, file)| file.clone());
            match value {
                CameraValue::Scalar(number) => tell(key, number.to_string()),
                CameraValue::Map(_) => tell(key, file().unwrap_or_else(|| "a map".to_owned())),
            }
        }
        if let Some([x, y]) = self.corner_px.filter(|_| self.has_maps()) {
            tell("corner_px", format!("{x} {y}"));
        }
        if !found {
            return told;
        }
        let (method, key, least) = match self.least {
            Least::Noise(least) => ("contrast", "noise_min", least),
            Least::Photons(least) => ("contrast", "photons_min", least),
            Least::Gradient(least) => ("net-gradient", "gradient_min", least),
        };
        tell("method", method.to_owned());
        tell(key, least.to_string());
        if method == "contrast" {
            tell("radius_px", self.radius_px.to_string());
            tell("border", self.border.name().to_owned());
        }
        tell("spots_max", self.spots_max(size).to_string());
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(said: &[(&str, &str)], found: bool) -> String {
        let mut settings = Settings::default();
        said.iter().for_each(|(key, value)| settings.set(key, value).expect("a setting"));
        let told = settings.told([96, 40], found);
        told.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn what_had_an_effect_is_told() {
        assert_eq!(
            line(&[], true),
            "box_px=7; iterations_max=30; offset=0; gain=1; read_noise=0; method=contrast; noise_min=5; radius_px=2; border=shift; \
             spots_max=10000"
        );
        assert_eq!(
            line(
                &[
                    ("psf", "xynbs"),
                    ("sigma_px", "1.2"),
                    ("gain", "0.46"),
                    ("photons_min", "150"),
                    ("border", "drop")
                ],
                true
            ),
            "sigma_px=1.2 1.2; box_px=7; iterations_max=30; offset=0; gain=0.46; read_noise=0; method=contrast; photons_min=150; \
             radius_px=2; border=drop; spots_max=10000"
        );
        assert_eq!(
            line(&[("psf", "xyznb"), ("gradient_min", "300"), ("spots_max", "9")], true),
            "z_um=-1 1; box_px=13; iterations_max=30; offset=0; gain=1; read_noise=0; method=net-gradient; gradient_min=300; spots_max=9"
        );
        // Of ROIs, nothing is told about spots that nobody looked for, and their own side.
        assert_eq!(
            line(&[("corner_px", "3,4"), ("offset", "-5")], false),
            "box_px=96; iterations_max=30; offset=-5; gain=1; read_noise=0"
        );
    }
}
