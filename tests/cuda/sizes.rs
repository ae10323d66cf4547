//! The size of batches on a GPU: kept for a while where another one is dear, and as it comes where all are recorded as graphs; and what
//! is kept of sizes that are not run any more.

use crate::{
    fakes::example,
    graph::{
        Extent::{self, *},
        FLOAT, model,
    },
    http::until_metrics,
    machine::{GPU, MODES, Machine, Running},
};
use serde_json::json;
use std::path::Path;

/// Writes a network of rows that is for GPUs alone.
fn put(models: &Path, name: &str, recorded: bool, nodes: &[(&str, &[&str], &str)], width: Extent) {
    let folder = models.join(name);
    std::fs::create_dir(&folder).unwrap();
    let shape = [Named("batch"), width];
    let [x, y] = ["x", "y"].map(|name| (name, FLOAT, &shape[..]));
    std::fs::write(folder.join("model.onnx"), model(nodes, &[x], &[y])).unwrap();
    let manifest = format!("[gpu]\ncuda_graph = {recorded}\n[placement]\ndevices = \"gpu\"\n");
    std::fs::write(folder.join("model.toml"), manifest).unwrap();
}

/// Has so many rows computed, which are all alike; the numbers that come.
async fn infer(server: &Running, name: &str, items: usize, row: &[f64]) -> Vec<f64> {
    let (shape, data) = ([items, row.len()], row.repeat(items));
    let x = json!({ "name": "x", "datatype": "FP32", "shape": shape, "data": data });
    let body = json!({ "inputs": [x] }).to_string().into_bytes();
    let reply = server.send("POST", &format!("/v2/models/{name}/infer"), &[], body).await;
    assert_eq!(reply.status, 200, "{}", reply.json());
    serde_json::from_value(reply.json()["outputs"][0]["data"].clone()).unwrap()
}

/// Waits until a network has run so many items and as much padding.
async fn until_ran(server: &Running, name: &str, items: usize, padding: usize) {
    let labels = format!("{{device=\"{GPU}\",model=\"{name}\"}}");
    let ran = format!("ocelli_items_total{labels} {items}");
    let padded = format!("ocelli_batch_padding_items_total{labels} {padding}");
    until_metrics(server.address, &[&ran, &padded]).await;
}

/// A server on a GPU, where networks run on the CPU.
async fn serve(machine: &Machine, isolation: &str, models: tempfile::TempDir) -> Running {
    let program = example::built("stand_in");
    let server = machine.run(&program, isolation, models, &[("backend", "gpu")]).await;
    server.until_ready().await;
    server
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_keeps_to_one_size_of_batches_of_a_network_unless_it_is_recorded() {
    for isolation in MODES {
        let models = tempfile::tempdir().unwrap();
        for (name, recorded) in [("plain", false), ("recorded", true)] {
            put(models.path(), name, recorded, &[("Neg", &["x"], "y")], Fixed(2));
        }
        let machine = Machine::new("count=1");
        let server = serve(&machine, isolation, models).await;
        // Three are padded to four; one is as well, where four is kept to.
        for (name, padding) in [("plain", 4), ("recorded", 1)] {
            for items in [3, 1] {
                assert_eq!(infer(&server, name, items, &[1.0, 2.0]).await, [-1.0, -2.0].repeat(items));
            }
            until_ran(&server, name, 4, padding).await;
        }
        server.end();
        machine.assert_empty();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_keeps_to_one_size_from_when_a_replay_gives_something_else_though_none_did_at_the_load() {
    // What zeros give does not hang on chance.
    let nodes: [(&str, &[&str], &str); 3] = [
        ("RandomNormalLike", &["x"], "chance"),
        ("Mul", &["x", "chance"], "noise"),
        ("Add", &["x", "noise"], "y"),
    ];
    for isolation in MODES {
        let models = tempfile::tempdir().unwrap();
        put(models.path(), "noisy", true, &nodes, Named("width"));
        // Nobody can see that its rows are computed each for itself.
        let manifest = models.path().join("noisy/model.toml");
        let placed = std::fs::read_to_string(&manifest).unwrap();
        std::fs::write(manifest, placed + "[batch]\naxis = \"items\"\n").unwrap();
        let machine = Machine::new("count=1");
        let server = serve(&machine, isolation, models).await;
        for items in [3, 1] {
            infer(&server, "noisy", items, &[0.0; 64]).await;
        }
        until_ran(&server, "noisy", 4, 1).await;
        // Such a batch was never run before.
        infer(&server, "noisy", 1, &[1.0; 5]).await;
        for items in [3, 3, 1] {
            infer(&server, "noisy", items, &[0.0; 64]).await;
        }
        until_ran(&server, "noisy", 12, 6).await;
        server.end();
        machine.assert_empty();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_network_that_mixes_its_rows_keeps_no_memory_of_batches_that_it_is_not_given() {
    let nodes: [(&str, &[&str], &str); 2] = [("ReduceMean", &["x"], "mean"), ("Sub", &["x", "mean"], "y")];
    for isolation in MODES {
        let models = tempfile::tempdir().unwrap();
        for (name, recorded) in [("plain", false), ("recorded", true)] {
            put(models.path(), name, recorded, &nodes, Fixed(2));
        }
        let machine = Machine::new("count=1");
        let server = serve(&machine, isolation, models).await;
        for name in ["plain", "recorded"] {
            let stats = server.send("GET", &format!("/v2/models/{name}/stats"), &[], Vec::new()).await.json();
            let held = &stats["model_stats"][0]["memory_usage"][0]["byte_size"];
            assert_eq!(held, &json!(3 * 2 * 2 * 4), "{name}: a row of input and output in three places");
        }
        server.end();
        machine.assert_empty();
    }
}
