//! A fitter's part of the manifest: `[fit]`, `[camera]` and `[detect]`, with the same keys as requests.

use super::{Engine, Kept, Manifest, PRIORITY_MAX, Versions, Waiting, file_name, read};
use crate::{
    engine::onnx::OnGpu,
    models::strict::Table,
    tasks::{
        Task,
        localize::settings::{self, KEYS, Section, Settings},
    },
};

/// ROIs in the largest batch if the manifest does not say.
const BATCH_ITEMS: usize = 10_000;
/// The largest number of ROIs that the manifest may set.
const BATCH_ITEMS_MAX: usize = 1_000_000;

/// Settings of a manifest with `engine = "gauss-mle"`, beside those that all manifests have.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Fit {
    /// The defaults for requests; the maps have not been read yet.
    pub settings: Settings,
    /// Keys of `[camera]` that have a value for each pixel, with the files in the model's folder that hold these
    /// values.
    pub maps: Vec<(&'static str, String)>,
}

pub(super) fn manifest(root: &Table<'_, '_>) -> Manifest {
    root.choice("task", &[("localize", ())]);
    let mut fit = Fit::default();
    let tables = [
        (Section::Fit, root.table("fit")),
        (Section::Camera, root.table("camera")),
        (Section::Detect, root.table("detect")),
    ];
    for (section, table) in &tables {
        let keys = KEYS.iter().filter(|(of, _)| of == section);
        let said: Vec<_> = keys.filter_map(|(_, key)| Some((*key, table.text(key)?))).collect();
        for (key, text) in &said {
            let map = *section == Section::Camera && text.ends_with(".npy");
            let set = if map {
                file_name(text).map(|()| fit.maps.push((key, text.clone())))
            } else {
                fit.settings.set(key, text)
            };
            if let Err(why) = set {
                table.mistake_at(key, why.strip_prefix(key).unwrap_or(&why).trim_start());
            }
        }
        if let Err((key, why)) = settings::agree(&said) {
            table.mistake_at(key, why.strip_prefix(key).unwrap_or(&why).trim_start());
        }
        table.finish();
    }
    // Mistakes in maps are reported when the maps are read.
    if let Err(why) = fit.settings.clone().setting() {
        let (key, what) = why.split_once(": ").unwrap_or((&why, ""));
        let of = KEYS.iter().find(|(_, known)| *known == key);
        match of.and_then(|(of, key)| Some((&tables.iter().find(|(section, _)| section == of)?.1, *key))) {
            Some((table, key)) => table.mistake_at(key, what),
            None => tables[0].1.mistake(&why),
        }
    }
    let (priority, timeout) = read::urgency(root, PRIORITY_MAX + 1);
    let mut batch = read::batch(&root.table("batch"), BATCH_ITEMS_MAX);
    if batch.no_axis == Some(true) {
        root.table("batch").mistake_at("axis", "is \"none\", but a fitter's first axis counts ROIs");
    }
    batch.items_max.get_or_insert(BATCH_ITEMS);
    let manifest = Manifest {
        engine: Engine::GaussMle(Box::new(fit)),
        task: Task::Localize,
        versions: Versions::All,
        file: None,
        labels: None,
        priority,
        timeout,
        input: None,
        batch,
        queue: Waiting::default(),
        placement: read::placement(&root.table("placement")),
        gpu: OnGpu::default(),
        declared: None,
        by_name: false,
        warmups: Vec::new(),
        kept: Kept::default(),
    };
    root.finish();
    manifest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(text: &str) -> Result<Box<Fit>, Vec<String>> {
        let manifest =
            Manifest::parse(&format!("engine = \"gauss-mle\"\n{text}")).map_err(|error| error.0)?;
        match manifest.engine {
            Engine::GaussMle(fit) => Ok(fit),
            Engine::Onnx => panic!("expected a fitter"),
        }
    }

    #[test]
    fn a_fitter_needs_no_more_than_its_engine() {
        let manifest = Manifest::parse("engine = \"gauss-mle\"").unwrap();
        assert_eq!(manifest.engine, Engine::GaussMle(Box::default()));
        assert_eq!(manifest.task, Task::Localize);
        assert_eq!(manifest.batch.items_max, Some(10_000));
    }

    #[test]
    fn every_key_can_be_set() {
        let text = "task = \"localize\"\n[fit]\npsf = \"xyznb\"\nsigma_px = [1.2, 1.4]\ngamma_um = 0.2\ndepth_um = 0.5\na = 0.1\nb = [0, 0.1]\n\
                    z_um = [-0.6, 0.6]\nbox_px = 11\niterations_max = 40\npreset = \"gaussmle\"\n[camera]\npixel_nm = 106.5\noffset = 100\n\
                    gain = 0.45\nread_noise = \"noise.npy\"\nexcess_noise = 2\ncorner_px = [512, 256]\n[detect]\nmethod = \"contrast\"\nphotons_min = 200\nradius_px = 4\n\
                    border = \"drop\"\nspots_max = 500\n[batch]\nitems_max = 50000\n";
        let fit = fit(text).unwrap();
        assert_eq!(fit.maps, [("read_noise", "noise.npy".to_owned())]);
        assert_eq!(fit.settings.box_px(), 11);
        let unset: Vec<_> = KEYS.iter().filter(|(_, key)| !text.contains(&format!("\n{key} = "))).collect();
        assert_eq!(unset.len(), 2, "noise_min and gradient_min exclude photons_min: {unset:?}");
    }

    #[test]
    fn mistakes_name_their_line_and_key() {
        let mistakes = fit(
            "[fit]\npsf = \"xynbz\"\nbox_px = 8\n[camera]\ngain = \"../gain.npy\"\n[detect]\ntreshold = 3\n",
        );
        assert_eq!(
            mistakes.unwrap_err(),
            [
                "line 3: fit.psf is \"xynbz\", expected xynb, xynbs, xynbsxsy, xyznb",
                "line 4: fit.box_px is \"8\", expected an odd number from 3 to 21",
                "line 6: camera.gain is \"../gain.npy\", allowed: the name of a file in the model's folder, without a path",
                "line 8: unknown key \"detect.treshold\"",
            ]
        );
        let mistakes = fit("[detect]\nmethod = \"net-gradient\"\nnoise_min = 5\n").unwrap_err();
        assert_eq!(
            mistakes,
            [
                "line 4: detect.noise_min is of the method contrast, but method is \"net-gradient\": leave one of them out"
            ]
        );
        // Keys of another method apply to requests that choose that method.
        assert!(fit("[detect]\nradius_px = 3\ngradient_min = 300\n").is_ok());
        let mistakes = fit("[detect]\nnoise_min = 5\nphotons_min = 200\n").unwrap_err();
        assert_eq!(
            mistakes,
            ["line 3: detect.noise_min is given beside photons_min: give the one that a spot must exceed"]
        );
        let mistakes = fit("[camera]\ngain = 0\n").unwrap_err();
        assert_eq!(mistakes, ["line 3: camera.gain 0 is not above 0 and up to 1000000"]);
        let mistakes = fit("[camera]\ngain = \"gain.tif\"\n").unwrap_err();
        assert_eq!(
            mistakes,
            [
                "line 3: camera.gain is \"gain.tif\", expected a number, or in model.toml the name of a .npy file with a number for each \
                 pixel of the sensor"
            ]
        );
        let mistakes = fit("[detect]\nnoise_min = 0\n").unwrap_err();
        assert_eq!(mistakes, ["line 3: detect.noise_min 0 is not above 0 and up to 1000000000"]);
        let mistakes = fit("[camera]\ngain = \"gain.npy\"\n[detect]\nradius_px = 40\n").unwrap_err();
        assert_eq!(mistakes, ["line 5: detect.radius_px is \"40\", expected a number from 1 to 16"]);
        let mistakes = fit("[camera]\ngain = \"gain.npy\"\n[detect]\nnoise_min = -5\n").unwrap_err();
        assert_eq!(mistakes, ["line 5: detect.noise_min -5 is not above 0 and up to 1000000000"]);
        assert!(fit("labels = \"a.txt\"\n").unwrap_err()[0].contains("unknown key \"labels\""));
        assert!(fit("task = \"classify\"\n").unwrap_err()[0].contains("allowed: localize"));
    }
}
