//! The size of batches on a GPU: kept for a while where another one is dear, and as it comes where all are recorded as graphs.

use crate::{
    fakes::example,
    graph::{Extent::*, FLOAT, model},
    http::until_metrics,
    machine::{GPU, MODES, Machine},
};
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_keeps_to_one_size_of_batches_of_a_network_unless_it_is_recorded() {
    for isolation in MODES {
        let models = tempfile::tempdir().unwrap();
        for (name, recorded) in [("plain", false), ("recorded", true)] {
            let folder = models.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            let [x, y] = ["x", "y"].map(|name| (name, FLOAT, &[Named("batch"), Fixed(2)][..]));
            std::fs::write(folder.join("model.onnx"), model(&[("Neg", &["x"], "y")], &[x], &[y])).unwrap();
            let manifest = format!("[gpu]\ncuda_graph = {recorded}\n[placement]\ndevices = \"gpu\"\n");
            std::fs::write(folder.join("model.toml"), manifest).unwrap();
        }
        let machine = Machine::new("count=1");
        let program = example::built("stand_in");
        let server = machine.run(&program, isolation, models, &[("backend", "gpu")]).await;
        server.until_ready().await;
        // Three are padded to four; one is as well, where four is kept to.
        for (name, padding) in [("plain", 4), ("recorded", 1)] {
            for items in [3, 1] {
                let data: Vec<f64> = (0..2 * items).map(f64::from).collect();
                let x = json!({ "name": "x", "datatype": "FP32", "shape": [items, 2], "data": data });
                let body = json!({ "inputs": [x] }).to_string().into_bytes();
                let reply = server.send("POST", &format!("/v2/models/{name}/infer"), &[], body).await;
                assert_eq!(reply.status, 200, "{}", reply.json());
                let negated: Vec<f64> = data.iter().map(|value| -value).collect();
                assert_eq!(reply.json()["outputs"][0]["data"], json!(negated));
            }
            let labels = format!("{{device=\"{GPU}\",model=\"{name}\"}}");
            let ran = format!("ocelli_items_total{labels} 4");
            let padded = format!("ocelli_batch_padding_items_total{labels} {padding}");
            until_metrics(server.address, &[&ran, &padded]).await;
        }
        server.end();
        machine.assert_empty();
    }
}
