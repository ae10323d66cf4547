//! `openapi.yaml` against what the code can answer.

use crate::support::{Server, config};
use axum::body::Body;
use ocelli::http::reject::KINDS;
use serde_norway::Value;
use std::collections::{BTreeMap, BTreeSet};

fn document() -> Value {
    serde_norway::from_str(include_str!("../../openapi.yaml")).unwrap()
}

/// Paths that share a route with others: what they end in, no route can say.
const PREDICTIONS: [&str; 2] =
    ["/v1/models/{model}:predict", "/v1/models/{model}/versions/{version}:predict"];

/// All operations: method, path, and the operation.
fn operations(document: &Value) -> Vec<(String, String, Value)> {
    let mut operations = Vec::new();
    for (path, item) in document["paths"].as_mapping().unwrap() {
        for method in ["get", "put", "post", "delete", "options", "head", "patch", "trace"] {
            if let Some(operation) = item.get(method) {
                let path = path.as_str().unwrap().to_owned();
                operations.push((method.to_owned(), path, operation.clone()));
            }
        }
    }
    operations
}

fn statuses(operation: &Value) -> BTreeSet<u16> {
    let responses = operation["responses"].as_mapping().unwrap();
    responses.keys().map(|status| status.as_str().unwrap().parse().unwrap()).collect()
}

/// A description with a comma that is not quoted ends there, and its rest becomes names without values.
#[test]
fn no_name_is_without_a_value() {
    fn check(value: &Value, path: &str) {
        match value {
            Value::Mapping(members) => {
                for (name, value) in members {
                    let path = format!("{path}/{}", name.as_str().unwrap_or("?"));
                    assert!(!value.is_null(), "{path}");
                    check(value, &path);
                }
            }
            Value::Sequence(items) => items.iter().for_each(|item| check(item, path)),
            _ => (),
        }
    }
    check(&document(), "");
}

#[test]
fn the_paths_are_those_of_the_router() {
    let document = document();
    let declared: BTreeSet<&str> =
        document["paths"].as_mapping().unwrap().keys().map(|path| path.as_str().unwrap()).collect();
    let routed: BTreeSet<&str> = ocelli::http::paths().into_iter().chain(PREDICTIONS).collect();
    assert_eq!(declared, routed, "openapi.yaml, router");
}

/// A 405 names the methods of its path, and comes before anything of the request is looked at.
#[tokio::test(flavor = "multi_thread")]
async fn the_methods_of_each_path_are_those_of_the_router() {
    let server = Server::start(config()).await;
    let mut declared = BTreeMap::<String, BTreeSet<String>>::new();
    for (method, path, _) in operations(&document()) {
        let methods = declared.entry(path).or_default();
        // Whoever may get something may ask for its head, which the document does not repeat.
        methods.extend((method == "get").then(|| "HEAD".to_owned()));
        methods.insert(method.to_uppercase());
    }
    for (path, methods) in declared {
        let asked = path.replace(['{', '}'], "");
        let reply = server.send("PATCH", &asked, &[], Body::empty()).await;
        assert_eq!(reply.status, 405, "PATCH {path}");
        let allowed = reply.headers["allow"].to_str().unwrap();
        let allowed: BTreeSet<String> = allowed.split(',').map(|method| method.trim().to_owned()).collect();
        assert_eq!(methods, allowed, "{path}: openapi.yaml, router");
    }
    server.end().await;
}

#[test]
fn predictions_declare_every_status_of_the_table_of_errors() {
    // Nobody is there to read a 499, and everybody may ask for predictions, which are offered.
    let table: BTreeSet<u16> =
        KINDS.iter().map(|kind| kind.status).filter(|status| ![403, 499, 501].contains(status)).collect();
    for (method, path, operation) in operations(&document()) {
        let mut declared = statuses(&operation);
        assert!(declared.remove(&200), "{method} {path} declares no success");
        if path.starts_with("/predictions/") {
            assert_eq!(declared, table, "{method} {path}");
        } else {
            declared.remove(&403);
            declared.remove(&501);
            // A caller's copy is still good: no error.
            declared.remove(&304);
            assert!(declared.is_subset(&table), "{method} {path} declares {declared:?}");
        }
    }
}

/// For a body that is packed in no way that is known, and for whoever comes by a proxy.
#[tokio::test(flavor = "multi_thread")]
async fn refusals_of_a_head_are_declared_wherever_they_are_answered() {
    let server = Server::start(config()).await;
    for (method, path, operation) in operations(&document()) {
        let declared = statuses(&operation);
        for (name, value) in [("content-encoding", "nonsense"), ("x-forwarded-for", "192.0.2.1")] {
            let asked = path.replace("{model}", "digits").replace("{version}", "1").replace(['{', '}'], "");
            let reply = server.send(&method.to_uppercase(), &asked, &[(name, value)], Body::empty()).await;
            assert!(declared.contains(&reply.status), "{method} {path} with {name}: {}", reply.status);
        }
    }
    server.end().await;
}

#[test]
fn every_reference_leads_somewhere() {
    fn walk(value: &Value, document: &Value) {
        match value {
            Value::Mapping(mapping) => {
                if let Some(reference) = mapping.get("$ref").and_then(Value::as_str) {
                    let steps = reference.strip_prefix("#/").unwrap().split('/');
                    let found = steps.into_iter().try_fold(document, |at, step| at.get(step));
                    assert!(found.is_some(), "{reference} leads nowhere");
                }
                mapping.values().for_each(|value| walk(value, document));
            }
            Value::Sequence(sequence) => sequence.iter().for_each(|value| walk(value, document)),
            _ => (),
        }
    }
    let document = document();
    walk(&document, &document);
}

#[test]
fn refusals_that_pass_say_when_to_come_back() {
    let document = document();
    for (_, path, operation) in operations(&document) {
        for status in ["429", "503"] {
            let Some(response) = operation["responses"].get(status) else {
                continue;
            };
            let name = response["$ref"].as_str().unwrap().rsplit('/').next().unwrap();
            let headers = &document["components"]["responses"][name]["headers"];
            assert!(headers.get("Retry-After").is_some(), "{path} {status}");
        }
    }
}
