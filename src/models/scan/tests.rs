//! Folders, and what is found in them.
#![allow(clippy::unwrap_used)] // a test may panic

use super::*;
use crate::engine::onnx::external;
use tempfile::TempDir;

/// The smallest ONNX file: just the version of its format.
const ONNX: &str = "\u{8}\u{8}";

/// A folder with these files; a name that ends in `/` is a folder.
fn folder(files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, text) in files {
        let path = folder.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

/// Checks name, version and, for what cannot be served, a part of the reason.
fn check(files: &[(&str, &str)], expected: &[(&str, &str, &str)]) {
    let folder = folder(files);
    check_folder(folder.path(), expected);
}

fn check_folder(folder: &Path, expected: &[(&str, &str, &str)]) {
    let found = scan(&folder.into()).unwrap();
    let got: Vec<(&str, &str, &str)> = found
        .iter()
        .map(|f| {
            let reason = f.source.as_ref().err().map_or("", String::as_str);
            (f.name.as_str(), f.version.as_str(), reason)
        })
        .collect();
    assert_eq!(got.len(), expected.len(), "{got:#?}");
    for (got, expected) in got.iter().zip(expected) {
        assert_eq!((got.0, got.1), (expected.0, expected.1), "{got:#?}");
        assert!(got.2.contains(expected.2), "{got:#?}");
        assert_eq!(got.2.is_empty(), expected.2.is_empty(), "{got:#?}");
    }
}

#[test]
fn all_layouts_are_found_in_a_fixed_order() {
    check(
        &[
            ("digits/10/model.onnx", ONNX),
            ("digits/9/model.onnx", ONNX),
            ("digits/notes/model.onnx", ONNX),
            ("digits/model.toml", "task = \"classify\""),
            ("bare/model.onnx", ONNX),
            ("cats.v2.onnx", ONNX),
            ("README.md", "text"),
            (".hidden/model.onnx", ONNX),
            ("mixed/model.onnx", ONNX),
            ("mixed/2/model.onnx", ONNX),
        ],
        &[
            ("bare", "1", ""),
            ("cats.v2", "1", ""),
            ("digits", "9", ""),
            ("digits", "10", ""),
            ("mixed", "1", ""),
            ("mixed", "2", ""),
        ],
    );
}

#[test]
fn a_file_whose_name_ends_in_capitals_is_told_and_not_passed_over() {
    check(
        &[("UP.ONNX", ONNX), ("up.onnx", ONNX), ("m/MODEL.ONNX", ONNX)],
        &[
            ("UP.ONNX", "", "small letters"),
            ("m", "", "there is MODEL.ONNX: call it model.onnx"),
            ("up", "1", ""),
        ],
    );
}

#[test]
fn a_model_that_is_called_as_a_path_of_the_api_is_told_of_it() {
    for file in ["stats/model.onnx", "stats.onnx", "stat.onnx"] {
        let folder = folder(&[(file, ONNX)]);
        let found = scan(&folder.path().into()).unwrap();
        let notes = &found[0].source.as_ref().unwrap().notes;
        let told = notes.iter().any(|note| note.contains("/v2/models/stats"));
        assert_eq!(told, file.starts_with("stats"), "{file}: {notes:?}");
    }
}

#[test]
fn what_describes_a_model_and_lies_in_the_models_folder_itself_is_told() {
    for (model, file, name) in [
        ("model.onnx", "model.toml", "model"),
        ("1/model.onnx", "config.pbtxt", "1"),
        ("A.onnx", "Model.toml", "A"),
    ] {
        check(&[(model, ONNX), (file, "")], &[(name, "1", ""), (file, "", "serve the folder above it")]);
    }
}

#[test]
fn what_describes_a_model_and_is_not_read_is_told_with_the_model() {
    let notes = |files: &[(&str, &str)]| {
        let found = scan(&folder(files).path().into()).unwrap();
        let notes =
            found.into_iter().map(|found| found.source.map_or_else(|why| vec![why], |source| source.notes));
        notes.collect::<Vec<_>>().concat()
    };
    let in_version =
        notes(&[("birds/1/model.toml", ""), ("birds/1/model.onnx", ONNX), ("birds/2/model.onnx", ONNX)]);
    let told = "1/model.toml is passed over: one model.toml in the model's folder is for all its versions";
    assert_eq!(in_version, [told]);
    assert_eq!(notes(&[("fit/1/model.toml", "")]), [format!("1/model.onnx is missing; {told}")]);
    let capitals = notes(&[("birds/Config.pbtxt", ""), ("birds/model.onnx", ONNX)]);
    assert_eq!(
        capitals,
        ["Config.pbtxt is passed over: such a file is called config.pbtxt, in small letters"]
    );
    let [told] = &notes(&[("fit/Model.toml", "")])[..] else { panic!("one model") };
    assert!(told.contains("such a file is called model.toml"), "{told}");
    let passed_over = |name: &str| {
        format!(
            "the folder {name} is passed over, with its model.onnx: a version's folder is called by its number, as 1"
        )
    };
    let latest =
        [("birds/latest/model.onnx", ONNX), ("birds/v2/model.onnx", ONNX), ("birds/1/model.onnx", ONNX)];
    assert_eq!(notes(&latest), ["latest", "v2"].map(passed_over));
    let missing = "it holds neither model.onnx nor VERSION/model.onnx";
    let [told] = &notes(&[("birds/1.0/model.onnx", ONNX), ("birds/data/w", "")])[..] else {
        panic!("one model")
    };
    assert!(told.starts_with(missing) && told.ends_with(&passed_over("1.0")), "{told}");
    let [beside] = &notes(&[("flowers.v2.onnx", ONNX), ("flowers.v2.toml", "")])[..] else {
        panic!("one note")
    };
    assert!(
        beside.starts_with("flowers.v2.toml is passed over") && beside.contains("flowers.v2/model.toml"),
        "{beside}"
    );
    let [first, second] = &notes(&[("1/model.onnx", ONNX), ("2/model.onnx", ONNX)])[..] else {
        panic!("a note for each")
    };
    assert!(first.starts_with("it is served by the name 1") && second.ends_with("serve the folder above it"));
    let right = [
        ("birds/model.toml", ""),
        ("birds/1/model.onnx", ONNX),
        ("other.toml", ""),
        ("bare.onnx", ONNX),
        ("2024/1/model.onnx", ONNX),
        ("7/model.onnx", ONNX),
        ("7/model.toml", ""),
    ];
    assert_eq!(notes(&right), [""; 0]);
}

#[test]
fn what_a_file_system_keeps_at_the_top_of_a_volume_is_no_model() {
    check(&[("lost+found/#1234", "text"), ("digits/model.onnx", ONNX)], &[("digits", "1", "")]);
}

#[test]
fn pipes_are_refused_without_waiting_for_whoever_writes_there() {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    let folder =
        folder(&[("a/model.onnx", ONNX), ("b/model.onnx", ONNX), ("b/model.toml", "labels = \"l\"\n")]);
    for name in ["a/model.toml", "b/l", "c.onnx"] {
        mknodat(CWD, folder.path().join(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    let (tell, told) = std::sync::mpsc::channel();
    let why = "it is not a file";
    let path = folder.path().to_owned();
    std::thread::spawn(move || {
        check_folder(&path, &[("a", "1", why), ("b", "1", why), ("c", "1", "c.onnx is not a file")]);
        tell.send(()).unwrap();
    });
    // The limit is only for a test that would hang.
    told.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
}

#[test]
fn a_repository_of_tritons_is_found_with_the_versions_that_its_policy_chooses() {
    check(
        &[
            ("all/9/model.onnx", ONNX),
            ("all/10/model.onnx", ONNX),
            ("all/config.pbtxt", "version_policy { all { } }"),
            ("both/1/model.onnx", ONNX),
            ("both/config.pbtxt", ""),
            ("both/model.toml", ""),
            ("broken/1/model.onnx", ONNX),
            ("broken/config.pbtxt", "name: \"broken\"\nmax_batch: 4\n"),
            ("empty/config.pbtxt", ""),
            ("highest/9/model.onnx", ONNX),
            ("highest/10/model.onnx", ONNX),
            ("highest/config.pbtxt", ""),
            ("named/1/net.onnx", ONNX),
            ("named/2/model.onnx", ONNX),
            (
                "named/config.pbtxt",
                "version_policy { specific { versions: [ 1, 2, 3 ] } } default_model_filename: \"net.onnx\"",
            ),
            ("unlabelled/1/model.onnx", ONNX),
            (
                "unlabelled/config.pbtxt",
                "output { name: \"y\" data_type: TYPE_FP32 dims: 2 label_filename: \"labels.txt\" }",
            ),
        ],
        &[
            ("all", "9", ""),
            ("all", "10", ""),
            ("both", "1", "model.toml and config.pbtxt both describe the model"),
            ("broken", "1", "config.pbtxt: line 2: field 'max_batch' not found"),
            ("empty", "", "holds neither model.onnx"),
            ("highest", "10", ""),
            ("named", "1", ""),
            ("named", "2", "2/net.onnx is missing"),
            ("named", "3", "there is no folder 3"),
            ("unlabelled", "1", "labels file \"labels.txt\": cannot read it"),
        ],
    );
}

#[test]
fn what_is_wrong_with_a_configuration_is_told_before_any_file_is_looked_for() {
    let why = "config.pbtxt: backend is \"python\", and only \"onnxruntime\" is served";
    check(
        &[
            ("beside/1/model.plan", ""),
            ("beside/config.pbtxt", "platform: \"tensorrt_plan\""),
            ("flat/2/notes", ""),
            ("flat/config.pbtxt", "backend: \"python\""),
            ("flat/model.onnx", ONNX),
            ("plan/1/model.plan", ""),
            ("plan/config.pbtxt", ""),
            ("python/1/model.py", ""),
            ("python/2/model.py", ""),
            ("python/007/model.py", ""),
            ("python/config.pbtxt", "backend: \"python\""),
            ("typo/1/notes", ""),
            ("typo/config.pbtxt", "max_batchsize: 1"),
            ("unversioned/config.pbtxt", "backend: \"python\""),
        ],
        &[
            ("beside", "1", "config.pbtxt: platform is \"tensorrt_plan\""),
            ("flat", "1", why),
            ("flat", "2", why),
            ("plan", "1", "1/model.onnx is missing, but there is model.plan, which is TensorRT's"),
            ("python", "1", why),
            ("python", "2", why),
            ("python", "007", why),
            ("typo", "1", "config.pbtxt: line 1: field 'max_batchsize' not found"),
            ("unversioned", "", why),
        ],
    );
}

#[test]
fn a_configuration_may_have_a_byte_order_mark_and_comments_in_any_encoding() {
    let folder =
        folder(&[("bom/1/model.onnx", ONNX), ("gbk/1/model.onnx", ONNX), ("label/1/model.onnx", ONNX)]);
    let write = |path: &str, bytes: &[u8]| fs::write(folder.path().join(path), bytes).unwrap();
    write("bom/config.pbtxt", b"\xef\xbb\xbfmax_batch_size: 4");
    write("gbk/config.pbtxt", b"# \xc5\xfa\xb4\xa6\xc0\xed\nmax_batch_size: 4 # \xb4\xf3\xd0\xa1\n");
    write("label/config.pbtxt", b"output { name: \"y\" data_type: TYPE_FP32 dims: 1 label_filename: \"l\" }");
    write("label/l", b"\xc5\xfa\n");
    let utf8 = "labels file \"l\": cannot read it: it is not UTF-8 at byte 1: save it as UTF-8";
    check_folder(folder.path(), &[("bom", "1", ""), ("gbk", "1", ""), ("label", "1", utf8)]);
    let found = scan(&folder.path().into()).unwrap();
    let largest = |found: &Found| found.source.as_ref().unwrap().manifest.batch.items_max;
    assert_eq!([largest(&found[0]), largest(&found[1])], [Some(4), Some(4)]);
}

#[test]
fn a_network_may_have_a_folder_of_its_own_with_its_external_data() {
    let folder = folder(&[
        ("m/1/model.onnx/weights.data", "67890"),
        ("m/config.pbtxt", ""),
        ("named/1/net/model.onnx", ONNX),
        ("named/config.pbtxt", "default_model_filename: \"net\""),
        ("other/1/model.onnx/net.onnx", ONNX),
        ("other/config.pbtxt", ""),
    ]);
    let model = external::testing::model("weights.data");
    fs::write(folder.path().join("m/1/model.onnx/model.onnx"), &model).unwrap();
    let missing = "1/model.onnx is missing, but there is model.onnx/net.onnx";
    check_folder(folder.path(), &[("m", "1", ""), ("named", "1", ""), ("other", "1", missing)]);
    let source = scan(&folder.path().into()).unwrap().remove(0).source.unwrap();
    assert_eq!(source.path, folder.path().join("m/1/model.onnx/model.onnx"));
    assert_eq!((source.folder, source.bytes), (folder.path().join("m"), model.len() as u64 + 5));
}

#[test]
fn versions_that_are_only_named_are_told_from_those_that_are_broken() {
    let config = "version_policy { specific { versions: [ 1, 2, 3 ] } }";
    let folder = folder(&[("m/1/model.onnx", ONNX), ("m/2/other", ""), ("m/config.pbtxt", config)]);
    let found = scan(&folder.path().into()).unwrap();
    let got: Vec<_> = found.iter().map(|found| (found.source.is_ok(), found.only_named)).collect();
    assert_eq!(got, [(true, false), (false, false), (false, true)]);
}

#[test]
fn a_repository_of_tritons_may_have_folders_with_leading_zeros_which_are_passed_over() {
    let config = "version_policy { all { } }";
    let files = [
        ("m/0/model.onnx", ONNX),
        ("m/2/model.onnx", ONNX),
        ("m/003/model.onnx", ONNX),
        ("m/config.pbtxt", config),
    ];
    check(&files, &[("m", "0", ""), ("m", "2", "")]);
    let notes = scan(&folder(&files).path().into()).unwrap().remove(1).source.unwrap().notes;
    let told = "the folder 003 is passed over: a version has no leading zeros";
    assert_eq!(notes, [told]);
    // Reported as well if nothing else is there.
    check(&files[2..], &[("m", "", told)]);
}

#[test]
fn another_number_of_labels_than_of_classes_is_told_of_outputs_whose_size_is_known() {
    let notes = |output: &str| {
        let config =
            format!("output {{ name: \"y\" data_type: TYPE_FP32 {output} label_filename: \"words.txt\" }}");
        let files = [("m/1/model.onnx", ONNX), ("m/config.pbtxt", &config), ("m/words.txt", "a\nb\n")];
        scan(&folder(&files).path().into()).unwrap().remove(0).source.unwrap().notes
    };
    let told = "config.pbtxt: output[\"y\"].label_filename: \"words.txt\" has 2 labels, and the output has 6 classes";
    assert_eq!(notes("dims: [ 2, 3 ]"), [told]);
    assert!(notes("dims: 2").is_empty() && notes("dims: [ -1, 3 ]").is_empty());
}

#[test]
fn an_output_of_tritons_whose_file_of_labels_is_empty_has_none() {
    for output in ["dims: 2", "dims: -1"] {
        let config =
            format!("output {{ name: \"y\" data_type: TYPE_FP32 {output} label_filename: \"words.txt\" }}");
        let files = [("m/1/model.onnx", ONNX), ("m/config.pbtxt", &config), ("m/words.txt", "\n")];
        let source = scan(&folder(&files).path().into()).unwrap().remove(0).source.unwrap();
        assert_eq!(source.notes, ["config.pbtxt: output[\"y\"].label_filename: \"words.txt\" has no labels"]);
        assert!(source.labels.is_empty() && source.output_labels["y"].is_empty());
    }
}

#[test]
fn outputs_have_the_labels_that_are_named_for_them() {
    let config = "output { name: \"y\" data_type: TYPE_FP32 dims: 2 label_filename: \"words.txt\" }
        output { name: \"z\" data_type: TYPE_FP32 dims: 2 label_filename: \"labels/more/colors.txt\" }
        output { name: \"plain\" data_type: TYPE_FP32 dims: 2 }";
    let folder = folder(&[
        ("m/1/model.onnx", ONNX),
        ("m/config.pbtxt", config),
        ("m/words.txt", "a\nb\n"),
        ("m/labels/more/colors.txt", "red\ngreen\n"),
    ]);
    let source = scan(&folder.path().into()).unwrap().remove(0).source.unwrap();
    let first = |output: &str| source.output_labels.get(output).and_then(|labels| labels.get(0));
    assert_eq!([first("y").as_deref(), first("z").as_deref()], [Some("a"), Some("red")]);
    assert_eq!(first("plain"), None);
    assert_eq!(source.labels.get(0).as_deref(), Some("a"));
}

#[test]
fn a_fitter_needs_no_model_file() {
    const FIT: &str = "engine = \"gauss-mle\"\n";
    let with_map = format!("{FIT}[camera]\noffset = \"offset.npy\"\n");
    check(
        &[
            ("fit/model.toml", FIT),
            ("mapped/model.toml", &with_map),
            ("mapped/offset.npy", "no numbers"),
            ("missing/model.toml", &with_map),
            ("two/model.toml", FIT),
            ("two/model.onnx", ONNX),
        ],
        &[
            ("fit", "1", ""),
            ("mapped", "", "camera.offset, file \"offset.npy\": not a stack"),
            ("missing", "", "camera.offset, file \"offset.npy\": cannot read it"),
            ("two", "1", "reads no model.onnx"),
        ],
    );
}

#[test]
fn one_bad_model_never_stops_the_others() {
    check(
        &[
            ("bad name/model.onnx", ONNX),
            ("-dash/model.onnx", ONNX),
            ("empty/notes.txt", "x"),
            ("good/model.onnx", ONNX),
            ("hollow/model.onnx", ""),
            ("lost/1/notes.txt", ""),
            ("typo/model.onnx", ONNX),
            ("typo/model.toml", "tsak = \"embed\"\npriority = 77"),
            ("zeros/01/model.onnx", ONNX),
        ],
        &[
            ("-dash", "", "must be 1 to 64 of"),
            ("bad name", "", "must be 1 to 64 of"),
            ("empty", "", "holds neither model.onnx"),
            ("good", "1", ""),
            ("hollow", "1", "model.onnx is empty"),
            ("lost", "1", "1/model.onnx is missing"),
            ("typo", "1", "nearest: task; line 2: priority is 77"),
            ("zeros", "01", "without leading zeros"),
        ],
    );
}

#[test]
fn what_lies_where_a_model_file_is_missing_is_named_with_what_to_do() {
    let neither = "it holds neither model.onnx nor VERSION/model.onnx, but there is ";
    let told = |what: &str| format!("{neither}{what}");
    let [best, two, hub, nested, group, pt, h5] = [
        told("best.onnx: call it model.onnx"),
        told("a.onnx, b.onnx, c.onnx and 2 more: call the one that is to be served model.onnx"),
        told("onnx/model.onnx: move it up"),
        told("weights/best.onnx: move it up and call it model.onnx"),
        told("a/model.onnx, b/model.onnx: move the one that is to be served up and call it model.onnx"),
        told("model.pt, which is PyTorch's: docs/pytorch.md says how it is exported"),
        told("net.h5, which is TensorFlow's: tf2onnx makes an ONNX file of it"),
    ];
    check(
        &[
            ("best/best.onnx", ONNX),
            ("best/model.pt", "x"),
            ("five/a.onnx", ONNX),
            ("five/b.onnx", ONNX),
            ("five/c.onnx", ONNX),
            ("five/d.onnx", ONNX),
            ("five/e.onnx", ONNX),
            ("group/a/model.onnx", ONNX),
            ("group/b/model.onnx", ONNX),
            ("hub/config.json", "{}"),
            ("hub/onnx/model.onnx", ONNX),
            ("hub/onnx/model_quantized.onnx", ONNX),
            ("keras/net.h5", "x"),
            ("named/config.pbtxt", "default_model_filename: \"net.onnx\""),
            ("named/best.onnx", ONNX),
            ("nested/weights/best.onnx", ONNX),
            ("pt/model.pt", "x"),
            ("versions/1/best.onnx", ONNX),
        ],
        &[
            ("best", "", &best),
            ("five", "", &two),
            ("group", "", &group),
            ("hub", "", &hub),
            ("keras", "", &h5),
            ("named", "", "but there is best.onnx: call it net.onnx"),
            ("nested", "", &nested),
            ("pt", "", &pt),
            ("versions", "1", "1/model.onnx is missing, but there is best.onnx: call it model.onnx"),
        ],
    );
}

#[test]
fn a_file_of_others_in_the_folder_itself_is_said_to_be_what_it_is_unless_a_model_was_made_of_it() {
    check(
        &[
            ("birds.pt", "x"),
            ("birds/model.onnx", ONNX),
            ("flowers.mar", "x"),
            ("model.pt", "x"),
            ("trees.onnx", ONNX),
            ("trees.pt", "x"),
        ],
        &[
            ("birds", "1", ""),
            ("flowers.mar", "", "it is TorchServe's: docs/coming-from-torchserve.md"),
            ("model.pt", "", "it is PyTorch's: docs/pytorch.md"),
            ("trees", "1", ""),
        ],
    );
}

#[test]
fn labels_that_no_key_names_are_told_where_a_model_has_classes() {
    let check = |manifest: &str, file: &str, expected: Option<&str>| {
        let folder = folder(&[("m/model.toml", manifest), (file, "cat"), ("m/model.onnx", ONNX)]);
        let found = scan(&folder.path().into()).unwrap().remove(0).source.unwrap();
        assert_eq!(
            found.notes.len(),
            usize::from(expected.is_some()),
            "{manifest} {file}: {:?}",
            found.notes
        );
        assert!(found.notes.iter().all(|note| note.contains(expected.unwrap())), "{:?}", found.notes);
    };
    let (key, how) =
        ("labels = \"labels.txt\" in model.toml names", "docs/coming-from-torchserve.md says how");
    for task in ["classify", "detect", "segment"] {
        check(&format!("task = \"{task}\""), "m/labels.txt", Some(key));
        check(&format!("task = \"{task}\""), "m/index_to_name.json", Some(how));
        check(&format!("task = \"{task}\"\nlabels = \"labels.txt\""), "m/labels.txt", None);
        check(&format!("task = \"{task}\""), "m/names.txt", None);
    }
    check("task = \"tensors\"", "m/labels.txt", None);
}

#[test]
fn the_only_model_is_told_to_have_another_name_than_model_name() {
    let check = |files: &[(&str, &str)], told: usize| {
        let folder = folder(files);
        let repository = Repository::new(folder.path().to_owned(), Some("service".to_owned()));
        let sources = scan(&repository).unwrap().into_iter().map(|found| found.source.unwrap());
        let notes: Vec<String> = sources.flat_map(|source| source.notes).collect();
        assert_eq!(notes.len(), told, "{notes:?}");
        assert!(notes.iter().all(|note| note.contains("by the name resnet50, not by model_name (service)")));
    };
    check(&[("resnet50.onnx", ONNX)], 1);
    check(&[("resnet50/1/model.onnx", ONNX), ("resnet50/2/model.onnx", ONNX)], 2);
    check(&[("resnet50.onnx", ONNX), ("other.onnx", ONNX)], 0);
    check(&[("service.onnx", ONNX)], 0);
    check(&[("model.onnx", ONNX)], 0);
}

#[test]
fn files_of_others_in_place_of_a_model_are_said_to_be_what_they_are() {
    check(
        &[
            ("lfs.onnx", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 132\n"),
            ("ort.onnx", "\u{1c}\0\0\0ORTM\0\0\u{12}\0"),
            ("other.onnx", "no model"),
            ("zip/model.onnx", "PK\u{3}\u{4}\u{14}\0\0\0"),
        ],
        &[
            (
                "lfs",
                "1",
                "lfs.onnx: it is Git LFS's pointer to the file, not the file: git lfs pull fetches that",
            ),
            ("ort", "1", "ort.onnx: it is in ONNX Runtime's own format: serve the ONNX file"),
            ("other", "1", "other.onnx: it is not an ONNX file, or a damaged one"),
            ("zip", "1", "model.onnx: it is a ZIP archive, as PyTorch's files are: docs/pytorch.md says"),
        ],
    );
}

#[test]
fn two_files_for_one_version_are_said_so() {
    check(
        &[("a/model.onnx", ONNX), ("a/1/model.onnx", ONNX), ("a.onnx", ONNX)],
        &[("a", "", "both version 1"), ("a", "1", ""), ("a.onnx", "1", "lies beside the folder a")],
    );
}

#[test]
fn labels_and_external_data_go_with_every_version() {
    let folder = folder(&[
        ("m/model.toml", "task = \"classify\"\nlabels = \"names.txt\""),
        ("m/names.txt", "cat\ndog\n"),
        ("m/1/weights.data", "67890"),
        ("m/2/model.onnx", ONNX),
    ]);
    let model = external::testing::model("weights.data");
    fs::write(folder.path().join("m/1/model.onnx"), &model).unwrap();
    let found = scan(&folder.path().into()).unwrap();
    let sources: Vec<&Source> = found.iter().map(|f| f.source.as_ref().unwrap()).collect();
    assert_eq!(sources[0].bytes, model.len() as u64 + 5);
    assert_eq!(sources[1].bytes, 2);
    assert_eq!(sources[1].labels.get(1).as_deref(), Some("dog"));
    assert_eq!(sources[1].folder, folder.path().join("m"));
    assert_eq!(sources[1].path, folder.path().join("m/2/model.onnx"));
}

#[test]
fn external_data_must_be_there_and_in_the_folder() {
    let folder = folder(&[("away/note", ""), ("lost/note", "")]);
    let write = |path: &str, location: &str| {
        let model = external::testing::model(location);
        fs::write(folder.path().join(path), model).unwrap();
    };
    write("away/model.onnx", "/etc/passwd");
    write("lost/model.onnx", "w.data");
    write("root.onnx", "../w.data");
    fs::create_dir(folder.path().join("link")).unwrap();
    write("link/model.onnx", "w.data");
    std::os::unix::fs::symlink("../away/note", folder.path().join("link/w.data")).unwrap();
    check_folder(
        folder.path(),
        &[
            ("away", "1", "\"/etc/passwd\", which leads out of the model's folder"),
            ("link", "1", "\"w.data\": it leads out of the model's folder"),
            ("lost", "1", "cannot read its external data \"w.data\""),
            ("root", "1", "leads out of the model's folder"),
        ],
    );
}

#[test]
fn labels_that_are_missing_or_empty_are_reasons() {
    let manifest = "labels = \"names.txt\"";
    check(
        &[
            ("a/model.onnx", ONNX),
            ("a/model.toml", manifest),
            ("b/model.onnx", ONNX),
            ("b/model.toml", manifest),
            ("b/names.txt", "\n"),
        ],
        &[
            ("a", "1", "labels file \"names.txt\": cannot read it"),
            ("b", "1", "labels file \"names.txt\": it holds no label"),
        ],
    );
}

#[cfg(unix)]
#[test]
fn labels_cannot_leave_their_folder_through_a_link() {
    let folder = folder(&[
        ("secret.txt", "password"),
        ("a/model.onnx", ONNX),
        ("a/model.toml", "labels = \"names.txt\""),
        ("b/model.onnx", ONNX),
        ("b/model.toml", "labels = \"names.txt\""),
        ("b/data/names.txt", "cat"),
    ]);
    let link = |to: &str, at: &str| {
        std::os::unix::fs::symlink(folder.path().join(to), folder.path().join(at)).unwrap();
    };
    link("secret.txt", "a/names.txt");
    link("b/data/names.txt", "b/names.txt");
    check_folder(folder.path(), &[("a", "1", "leads out of the model's folder"), ("b", "1", "")]);
}

#[test]
fn a_folder_that_cannot_be_read_is_an_error() {
    let error = scan(&Path::new("/nonexistent/models").into()).unwrap_err();
    assert!(error.starts_with("cannot read the folder /nonexistent/models"), "{error}");
}

/// Creates links with these names and targets.
fn link(folder: &TempDir, links: &[(&str, &str)]) {
    for (to, at) in links {
        std::os::unix::fs::symlink(to, folder.path().join(at)).unwrap();
    }
}

#[test]
fn links_that_lead_nowhere_or_to_themselves_are_listed_in_place_of_models_and_versions() {
    let folder = folder(&[
        ("file/1/note", ""),
        ("flat/2/model.onnx", ONNX),
        ("good/model.onnx", ONNX),
        ("versions/1/model.onnx", ONNX),
        ("versions/notes.txt", ""),
    ]);
    link(
        &folder,
        &[
            ("/nonexistent/model", "away"),
            ("/nonexistent/net", "bare.onnx"),
            ("/nonexistent/net", "file/1/model.onnx"),
            ("/nonexistent/net", "flat/model.onnx"),
            ("good", "linked"),
            ("looped", "looped"),
            ("/nonexistent/2", "versions/2"),
            ("3", "versions/3"),
            ("/nonexistent/notes", "versions/more-notes"),
        ],
    );
    check_folder(
        folder.path(),
        &[
            ("away", "", "away, a link to /nonexistent/model: No such file"),
            ("bare", "1", "bare.onnx: No such file"),
            ("file", "1", "1/model.onnx, a link to /nonexistent/net: No such file"),
            ("flat", "1", "flat/model.onnx: No such file"),
            ("flat", "2", ""),
            ("good", "1", ""),
            ("linked", "1", ""),
            ("looped", "", "looped, a link to looped: Too many levels"),
            ("versions", "1", ""),
            ("versions", "2", "versions/2, a link to /nonexistent/2: No such file"),
            ("versions", "3", "versions/3, a link to 3: Too many levels"),
        ],
    );
}

#[test]
fn a_policy_chooses_among_versions_whose_links_lead_nowhere_as_among_others() {
    let named = "version_policy { specific { versions: [ 1, 2 ] } }";
    let folder = folder(&[
        ("latest/1/model.onnx", ONNX),
        ("latest/config.pbtxt", ""),
        ("named/1/model.onnx", ONNX),
        ("named/config.pbtxt", named),
    ]);
    link(&folder, &[("/nonexistent/2", "latest/2"), ("/nonexistent/2", "named/2")]);
    let found = scan(&folder.path().into()).unwrap();
    let got: Vec<_> = found
        .iter()
        .map(|found| (&*found.name, &*found.version, found.source.is_ok(), found.only_named))
        .collect();
    assert_eq!(
        got,
        [("latest", "2", false, false), ("named", "1", true, false), ("named", "2", false, false)]
    );
}

#[test]
fn one_model_is_found_as_among_all_and_no_other_is_looked_into() {
    let files = [
        ("digits/1/model.onnx", ONNX),
        ("digits/2/model.onnx", ONNX),
        ("digits/config.pbtxt", ""),
        ("digits.onnx", ONNX),
        ("spots.onnx", ONNX),
        ("spots.onnx.onnx", ONNX),
        ("UP.ONNX", ONNX),
        ("README.md", ""),
    ];
    let folder = folder(&files);
    let told = |found: &[Found]| -> Vec<(String, String, Option<String>)> {
        let told = |f: &Found| (f.name.clone(), f.version.clone(), f.source.as_ref().err().cloned());
        found.iter().map(told).collect()
    };
    let all = scan(&folder.path().into()).unwrap();
    for name in ["digits", "digits.onnx", "spots", "spots.onnx", "UP.ONNX", "README.md", "../digits", "."] {
        let one = scan_one(&folder.path().into(), name, None).unwrap();
        let of_all: Vec<Found> = all.iter().filter(|found| found.name == name).cloned().collect();
        assert_eq!(told(&one), told(&of_all), "{name}");
    }
    let first = Versions::Specific(["1".to_owned()].into());
    let one = scan_one(&folder.path().into(), "digits", Some(&first)).unwrap();
    assert_eq!(told(&one), [("digits".to_owned(), "1".to_owned(), None)]);
    assert!(scan_one(&Path::new("/nonexistent/models").into(), "m", None).is_err());
}

#[test]
fn names_are_those_of_what_is_found_without_what_lies_beside_the_models() {
    let folder = folder(&[
        ("digits/model.onnx", ONNX),
        ("bare.onnx", ONNX),
        ("UP.ONNX", ONNX),
        ("README.md", "text"),
        ("backup.tar.gz", "text"),
        (".hidden/model.onnx", ONNX),
        ("lost+found/#1234", "text"),
    ]);
    link(&folder, &[("/nonexistent/model", "away"), ("digits", "linked"), ("README.md", "notes")]);
    let names = names(&folder.path().into()).unwrap();
    let found: BTreeSet<String> =
        scan(&folder.path().into()).unwrap().into_iter().map(|found| found.name).collect();
    assert_eq!(names, found);
    assert_eq!(names.iter().collect::<Vec<_>>(), ["UP.ONNX", "away", "bare", "digits", "linked"]);
}

#[test]
fn a_folder_that_is_itself_one_model_s_is_served_by_the_name_that_is_given() {
    let named = |files: &[(&str, &str)], name: Option<&str>| {
        let folder = folder(files);
        let repository = Repository::new(folder.path().to_owned(), name.map(str::to_owned));
        let all = scan(&repository).unwrap();
        let text = |found: &Found| format!("{}/{}", found.name, found.version);
        let texts = all.iter().map(text).collect::<Vec<_>>().join(" ");
        assert_eq!(names(&repository).unwrap(), all.iter().map(|found| found.name.clone()).collect());
        let one = scan_one(&repository, "flowers", None).unwrap();
        assert_eq!(one.len(), all.iter().filter(|found| found.name == "flowers").count(), "{texts}");
        (texts, all.into_iter().find_map(|found| found.source.ok()))
    };
    let described: &[_] =
        &[("model.onnx", ONNX), ("model.toml", "labels = \"labels.txt\""), ("labels.txt", "rose\ntulip")];
    let (texts, source) = named(described, Some("flowers"));
    assert_eq!((texts.as_str(), source.unwrap().labels.len()), ("flowers/1", 2));
    for (files, texts) in [
        (&[("1/model.onnx", ONNX), ("3/model.onnx", ONNX)][..], "flowers/1 flowers/3"),
        (&[("1/model.onnx", ONNX), ("config.pbtxt", "")], "flowers/1"),
        (&[("model.onnx", ONNX)], "flowers/1"),
        // Folders of models, whatever the name.
        (&[("roses/model.onnx", ONNX), ("README.md", "")], "roses/1"),
        (&[("flowers/model.onnx", ONNX), ("tulips.onnx", ONNX)], "flowers/1 tulips/1"),
        (&[], ""),
    ] {
        assert_eq!(named(files, Some("flowers")).0, texts, "{files:?}");
    }
    // Without a name, the files that describe it are told as mistakes.
    assert_eq!(named(described, None).0, "model/1 model.toml/");
}
