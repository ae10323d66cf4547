//! What becomes of requests that one GPU alone may answer, while it is away: they wait for it if it is expected back in their time,
//! and are refused with the reason if not.

use crate::{
    failover::fit_within,
    http::Reply,
    machine::{GPU, MODES, Machine, Running, until},
    scenarios::end,
};
use futures_util::future::join_all;

/// Nothing else answers.
const ALONE: &str = "[placement]\ndevices = \"gpu\"\nfallback = \"never\"\n";
/// Time enough for everything here, on a slow machine too; whoever waits to its end is late (504).
const ENOUGH_MS: &str = "120000";

async fn fit(server: &Running) -> Reply {
    fit_within(server.address, "spots", 3, ENOUGH_MS).await
}

/// A request is refused with this reason.
async fn refused(server: &Running, reason: &str) {
    let reply = fit(server).await;
    let error = reply.json()["error"].to_string();
    assert_eq!(reply.status, 503, "{error}");
    assert!(reply.headers.contains_key("retry-after"), "{error}");
    assert!(error.contains(&format!("{GPU} is away: {reason}")), "{error}");
}

async fn drain(server: &Running) {
    assert_eq!(server.send("POST", &format!("/v2/devices/{GPU}/drain"), &[], "").await.status, 200);
    server.until_state("fenced", "drain").await;
    until("nothing is decided of it", async || server.device(GPU).await["verdict"] == "").await;
}

#[tokio::test]
async fn while_a_gpu_is_drained_requests_are_refused_whatever_was_said_before() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ALONE, &[]).await;
        drain(&server).await;
        refused(&server, "drained by request").await;
        assert_eq!(server.send("POST", &format!("/v2/devices/{GPU}/resume"), &[], "").await.status, 200);
        server.until_state("serving", "proved").await;
        assert_eq!(fit(&server).await.status, 200);
        // It would be back in a minute, for which there is time enough; then nobody can say when.
        machine.tell("nvml", "xid gpu=0 code=119").await;
        server.until_state("fenced", "xid").await;
        drain(&server).await;
        refused(&server, "drained by request").await;
        end(&machine, server);
    }
}

/// It is taken anew with one model after the other.
#[tokio::test]
async fn requests_wait_until_a_gpu_that_comes_back_has_their_model_too() {
    for isolation in MODES {
        let machine = Machine::new("");
        let names = ["a", "b", "c"];
        let models = names.map(|name| (name, ALONE));
        let server = machine.start(isolation, &models, &[("idle-release-ms", "500")]).await;
        server.until_ready().await;
        let all: &[&[&str]] = &[&["c"], &["b"], &["a"], &names];
        for asked in all {
            server.until_state("waiting", "idle").await;
            let asking = asked.iter().map(|name| fit_within(server.address, name, 3, ENOUGH_MS));
            for reply in join_all(asking).await {
                assert_eq!(reply.status, 200, "{asked:?}: {:?}", reply.body);
            }
        }
        end(&machine, server);
    }
}

/// When the last has its answer nothing is left of it.
#[tokio::test]
async fn requests_that_wait_for_a_gpu_are_answered_though_their_model_is_unloaded_meanwhile() {
    for isolation in MODES {
        let machine = Machine::new("memory=16GiB context=100MiB");
        let options =
            [("idle-release-ms", "500"), ("repository-mode", "explicit"), ("while-waiting", "wait")];
        let server = machine.start(isolation, &[("spots", ALONE)], &options).await;
        server.until_ready().await;
        server.until_state("waiting", "idle").await;
        machine.occupy(0, "15GiB").await;
        let unload = async || {
            server.until_metric("ocelli_queue_items{model=\"spots\"} 3").await;
            server.until_said("waiting for the GPU").await;
            let unload = "/v2/repository/models/spots/unload";
            assert_eq!(server.send("POST", unload, &[], "{}").await.status, 200);
            assert_eq!(server.get("/v2/models/spots/ready").await.0, 404);
            assert_eq!(fit(&server).await.status, 404, "nobody else begins with it");
            machine.vacate(0).await;
        };
        let (reply, ()) = tokio::join!(fit(&server), unload());
        assert_eq!(reply.status, 200, "{:?}", reply.body);
        server.until_state("waiting", "empty").await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_is_not_given_back_as_unused_while_a_model_is_loaded_onto_it() {
    for isolation in MODES {
        let machine = Machine::new("");
        machine.tell("cuda", "fault on=kernel times=always sleep_us=50000").await;
        let server = machine.start(isolation, &[("spots", ALONE)], &[("idle-release-ms", "100")]).await;
        server.until_said("an idle GPU is given back").await;
        assert_eq!(server.said("model is ready").len(), 1, "{:?}", server.said(""));
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_model_that_goes_takes_no_idle_gpu() {
    for isolation in MODES {
        let machine = Machine::new("");
        let options = [("idle-release-ms", "500"), ("repository-mode", "explicit")];
        let server = machine.start(isolation, &[("a", ALONE), ("b", ALONE)], &options).await;
        server.until_ready().await;
        assert_eq!(fit_within(server.address, "a", 3, ENOUGH_MS).await.status, 200);
        server.until_state("waiting", "idle").await;
        let serving = async || {
            let (_, text) = server.get("/metrics").await;
            let count = format!(
                "ocelli_device_transitions_total{{device=\"{GPU}\",reason=\"proved\",state=\"serving\"}} "
            );
            text.lines().find_map(|line| line.strip_prefix(&count).map(str::to_owned)).unwrap()
        };
        let before = serving().await;
        assert_eq!(server.send("POST", "/v2/repository/models/a/unload", &[], "{}").await.status, 200);
        // Long enough for several turns of its keeper.
        for _ in 0..20 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            assert_eq!(server.device(GPU).await["cause"], "idle");
        }
        assert_eq!(serving().await, before);
        assert_eq!(fit_within(server.address, "b", 3, ENOUGH_MS).await.status, 200, "it is taken on demand");
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_is_lost_is_not_waited_for() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ALONE, &[]).await;
        machine.tell("nvml", "xid gpu=0 code=79").await;
        server.until_state("lost", "bus").await;
        refused(&server, "Xid 79").await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_is_lost_is_not_waited_for_either_once_it_was_drained_and_is_resumed() {
    for isolation in MODES {
        let machine = Machine::new("");
        let server = machine.serving(isolation, ALONE, &[]).await;
        machine.tell("nvml", "lose gpu=0").await;
        server.until_state("lost", "bus").await;
        drain(&server).await;
        assert_eq!(server.send("POST", &format!("/v2/devices/{GPU}/resume"), &[], "").await.status, 200);
        server.until_state("lost", "bus").await;
        refused(&server, "it does not answer on the bus").await;
        end(&machine, server);
    }
}

#[tokio::test]
async fn a_gpu_that_failed_and_that_others_have_since_is_not_waited_for() {
    for isolation in MODES {
        let machine = Machine::new("memory=16GiB context=100MiB");
        let server = machine.serving(isolation, ALONE, &[]).await;
        // While it is ours, that takes it from nobody.
        machine.tell("nvml", "process gpu=0 pid=4242 memory=100MiB").await;
        machine.tell("nvml", "set gpu=0 utilization=95").await;
        let seen = async || server.device(GPU).await["utilization_percent"] == 95;
        until("the look has been taken", seen).await;
        machine.tell("nvml", "xid gpu=0 code=48").await;
        server.until_state("fenced", "xid").await;
        // First it is expected back, and the request waits; then others have it.
        refused(&server, "Xid 48").await;
        let contended = async || server.device(GPU).await["verdict"] == "contended";
        until("it is shown", contended).await;
        refused(&server, "Xid 48").await;
        machine.tell("nvml", "end gpu=0 pid=4242").await;
        server.until_state("serving", "proved").await;
        assert_eq!(fit(&server).await.status, 200);
        end(&machine, server);
    }
}

/// A process of its own is ended with the call, and the GPU comes back.
#[tokio::test]
async fn a_gpu_on_which_a_call_of_the_server_itself_hangs_is_not_waited_for() {
    let machine = Machine::new("");
    let server = machine.serving("thread", ALONE, &[("gpu-stuck-ms", "5000")]).await;
    machine.tell("cuda", "fault on=kernel hang times=always").await;
    for _ in 0..3 {
        refused(&server, "a call has not come back for ").await;
    }
    machine.tell("cuda", "clear").await;
    server.until_state("serving", "proved").await;
    assert_eq!(fit(&server).await.status, 200);
    end(&machine, server);
}

#[tokio::test]
async fn a_gpu_that_nvml_does_not_know_at_first_is_looked_at_when_it_does() {
    let machine = Machine::new("");
    // While its driver comes up.
    machine.tell("nvml", "still fault on=nvmlDeviceGetUUID times=1 code=999").await;
    let server = machine.serving("thread", ALONE, &[]).await;
    server.until_said("NVML does not say which GPU this is").await;
    assert_eq!(fit(&server).await.status, 200);
    let seen = async || !server.device(GPU).await["utilization_percent"].is_null();
    until("it is seen how busy it is", seen).await;
    end(&machine, server);
}

/// One that comes back may be found only by an NVML that was opened after that.
#[tokio::test]
async fn nvml_is_opened_again_for_a_gpu_that_is_lost() {
    let machine = Machine::new("");
    let server = machine.serving("thread", ALONE, &[]).await;
    machine.tell("nvml", "fault on=nvmlInit_v2 code=999").await;
    machine.tell("nvml", "lose gpu=0").await;
    server.until_state("lost", "bus").await;
    server.until_said("NVML cannot be opened again").await;
    server.until_said("NVML can be used now").await;
    end(&machine, server);
}
