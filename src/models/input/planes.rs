//! Networks whose channels are the pages of a file.

use super::Input;
use crate::{
    engine::Dim,
    image::{Layout, Pages},
};

/// Mean and standard deviation of each channel, if the pages of a file are channels.
///
/// # Errors
/// Keys that say nothing there, and another number of numbers than there are channels.
pub(super) fn of(input: &Input, channels: usize) -> Result<Option<Vec<[f32; 2]>>, String> {
    if input.pages != Some(Pages::Channels) {
        return Ok(None);
    }
    for (key, set) in [("color", input.color.is_some()), ("background", input.background.is_some())] {
        if set {
            return Err(format!(
                "input.{key} is not read with input.pages = \"channels\", which have no colour"
            ));
        }
    }
    let each = |key: &str, set: Option<&[f32]>, usual: f32| match set {
        None => Ok(vec![usual; channels]),
        Some([all]) => Ok(vec![*all; channels]),
        Some(values) if values.len() == channels => Ok(values.to_vec()),
        Some(values) => Err(format!(
            "input.{key} has {} numbers, the model's input has {channels} channels: give one, or one for each",
            values.len()
        )),
    };
    let (mean, std) = (each("mean", input.mean.as_deref(), 0.0)?, each("std", input.std.as_deref(), 1.0)?);
    Ok(Some(mean.into_iter().zip(std).map(|(mean, std)| [mean, std]).collect()))
}

/// Where the channels are, by the first and the last of the three axes of an image: where the extent is fixed, or the smaller one. `None`
/// where either could be.
pub(super) fn layout(first: Dim, last: Dim) -> Option<Layout> {
    match (first, last) {
        (Dim::Fixed(_), Dim::Free) => Some(Layout::Nchw),
        (Dim::Free, Dim::Fixed(_)) => Some(Layout::Nhwc),
        (Dim::Fixed(first), Dim::Fixed(last)) if first < last => Some(Layout::Nchw),
        (Dim::Fixed(first), Dim::Fixed(last)) if first > last => Some(Layout::Nhwc),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]
    use super::{super::resolve, *};
    use crate::{
        engine::{
            DataType,
            onnx::{axes::testing::model, outline::Outline},
        },
        models::{ImageInput, manifest::Manifest},
        tasks::testing::{signature, spec},
    };

    fn run(keys: &str, shape: &[i64]) -> Result<ImageInput, String> {
        run_named(keys, shape, &Outline::default())
    }

    fn run_named(keys: &str, shape: &[i64], outline: &Outline) -> Result<ImageInput, String> {
        let text = format!("task = \"image\"\n[input]\nresize = \"none\"\npages = \"channels\"\n{keys}");
        let manifest = Manifest::parse(&text).map_err(|error| error.to_string())?;
        let mut signature = signature(&[("out", &[-1, 1, -1, -1])]);
        signature.inputs = vec![spec("x", DataType::Fp32, shape)];
        resolve(&manifest.input.unwrap(), &manifest.task, &signature, outline)
    }

    #[test]
    fn pages_become_as_many_channels_as_the_network_has() {
        let open = run("", &[-1, 5, -1, -1]).unwrap();
        assert_eq!((open.planes.as_deref(), open.pages()), (Some(&[[0.0, 1.0]; 5][..]), Pages::Channels));
        assert_eq!(open.item_shape(9, 7), [1, 5, 7, 9]);
        let form = open.form(1, 9, 7);
        assert_eq!((form.datatype, form.bytes, form.is_pixels), (DataType::Fp32, 4 * 5 * 7 * 9, false));
        assert_eq!(run("", &[-1, -1, -1, 12]).unwrap().item_shape(9, 7), [1, 7, 9, 12]);
        assert_eq!(run("", &[-1, 12, 64, 64]).unwrap().item_shape(64, 64), [1, 12, 64, 64]);
        assert_eq!(run("", &[-1, 64, 96, 12]).unwrap().item_shape(96, 64), [1, 64, 96, 12]);
        assert_eq!(run("", &[2, 64, 96]).unwrap().item_shape(96, 64), [2, 64, 96], "without a batch axis");
        assert_eq!(run("layout = \"nchw\"", &[-1, 64, 64, 64]).unwrap().item_shape(64, 64), [1, 64, 64, 64]);
        let means = run("mean = [0.1, 0.2]\nstd = 2", &[-1, 2, -1, -1]).unwrap();
        assert_eq!(means.planes, Some(vec![[0.1, 2.0], [0.2, 2.0]]));
        let told = means.told(&Input::default());
        assert_eq!(
            told,
            "input = { resize = \"none\", pages = \"channels\", layout = \"nchw\", scale = 0.003921569, mean = [0.1, 0.2], std = 2.0 }"
        );
    }

    #[test]
    fn what_says_nothing_of_channels_is_refused_with_what_to_do() {
        let check = |keys: &str, shape: &[i64], told: &str| {
            let why = run(keys, shape).map(|_| ()).unwrap_err();
            assert!(why.contains(told), "{why}");
        };
        check("color = \"gray\"", &[-1, 5, -1, -1], "input.color is not read with");
        check("background = 0", &[-1, 5, -1, -1], "input.background is not read with");
        check(
            "mean = [1, 2, 3]",
            &[-1, 5, -1, -1],
            "input.mean has 3 numbers, the model's input has 5 channels",
        );
        check(
            "std = [1, 2, 3]",
            &[-1, 2, -1, -1],
            "input.std has 3 numbers, the model's input has 2 channels",
        );
        check("mean = [0, 300]", &[-1, 2, -1, -1], "input.mean holds 300, which is more than any pixel has");
        assert!(run("scale = 1\nmean = [0, 300]", &[-1, 2, -1, -1]).is_ok(), "measured values may have it");
        check("mean = []", &[-1, 2, -1, -1], "one number, or one for each channel");
        check("", &[-1, -1, 64, -1], "leaves it open: export it with that number");
        check("", &[-1, 64, 64, 64], "leaves open layout");
    }

    #[test]
    fn an_open_axis_that_the_file_names_for_the_channels_is_not_taken_for_a_side() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.onnx");
        for (shape, axes) in [
            ([-1, -1, 64, 64], ["batch", "channels", "", ""]),
            ([-1, 64, 64, -1], ["batch", "", "", "channels"]),
        ] {
            std::fs::write(&file, model("x", &axes)).unwrap();
            let why = run_named("", &shape, &Outline::of(&file).unwrap()).map(|_| ()).unwrap_err();
            assert!(why.contains("leaves it open: export it with that number"), "{why}");
        }
        // Without the name, these are as many channels as the image is wide.
        assert_eq!(run("", &[-1, -1, 64, 64]).unwrap().item_shape(64, 9), [1, 9, 64, 64]);
    }
}
