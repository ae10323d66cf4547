//! Metrics of routes. Routes are known when the router is built; everything else counts as `other`.

use super::{
    RequestClass,
    model::{DURATION_BUCKETS, Late},
    register::Register,
};
use parking_lot::RwLock;
use prometheus::{HistogramVec, IntCounter, IntCounterVec};
use std::{collections::BTreeMap, time::Duration};

/// Methods that are counted separately; a caller may invent others.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// A method that is counted separately; `None` for others, which a caller may have invented.
pub fn known_method(method: &str) -> Option<&'static str> {
    METHODS.into_iter().find(|known| *known == method)
}

impl RequestClass {
    fn of_code(code: u16) -> RequestClass {
        match code {
            100..400 => RequestClass::Answered,
            499 | 504 => RequestClass::Abandoned,
            _ => RequestClass::Failed,
        }
    }

    /// Its histogram of a route. That of answers is there from the start, so that rates have a beginning; of the others, most routes
    /// never have one.
    fn of(self, durations: &HistogramVec, route: &str) -> Late {
        let of = Late::new(durations, &[route, self.name()]);
        if self == RequestClass::Answered {
            of.begin();
        }
        of
    }
}

/// The routes of the router, and `other`.
#[derive(Debug)]
pub(super) struct Routes {
    known: BTreeMap<String, RouteMetrics>,
    other: RouteMetrics,
}

impl Routes {
    pub(super) fn new(register: &mut Register, routes: &[&str]) -> Routes {
        let requests = register.counters(
            "ocelli_http_requests_total",
            "Requests that were answered, and requests whose caller went away before the reply (code 499).",
            &["route", "method", "code"],
        );
        let durations = register.histograms(
            "ocelli_http_request_duration_seconds",
            "Time from a request's headers to the head of its reply, or until its caller went away.",
            &["route", "class"],
            &DURATION_BUCKETS,
        );
        let route = |template: &str| RouteMetrics {
            template: template.into(),
            durations: RequestClass::ALL.map(|class| class.of(&durations, template)),
            requests: requests.clone(),
            counters: RwLock::default(),
        };
        Routes {
            known: (routes.iter()).map(|template| (template.to_string(), route(template))).collect(),
            other: route("other"),
        }
    }

    pub(super) fn get(&self, template: &str) -> &RouteMetrics {
        self.known.get(template).unwrap_or(&self.other)
    }
}

/// The metrics of a route.
#[derive(Debug)]
pub struct RouteMetrics {
    template: String,
    durations: [Late; RequestClass::ALL.len()],
    requests: IntCounterVec,
    /// By method and code, in order of first occurrence. There are a handful per route, searched linearly.
    counters: RwLock<Vec<(&'static str, u16, IntCounter)>>,
}

impl RouteMetrics {
    /// Counts a request that was answered with `code` after `duration`, or abandoned by its caller. `method` may be anything that a caller
    /// sends.
    pub fn request(&self, method: &str, code: u16, duration: Duration) {
        self.durations[RequestClass::of_code(code) as usize].observe(duration.as_secs_f64());
        let method = known_method(method).unwrap_or("OTHER");
        // 0 stands for anything that is not a status code.
        let code = if (100..600).contains(&code) { code } else { 0 };
        let count = |counters: &[(&'static str, u16, IntCounter)]| {
            let found = counters.iter().find(|(m, c, _)| *m == method && *c == code);
            if let Some((_, _, counter)) = found {
                counter.inc();
            }
            found.is_some()
        };
        let known = self.counters.read();
        if count(&known) {
            return;
        }
        drop(known);
        let mut known = self.counters.write();
        if !count(&known) {
            let label = match code {
                0 => "other".into(),
                code => code.to_string(),
            };
            let counter = self.requests.with_label_values(&[self.template.as_str(), method, &label]);
            counter.inc();
            known.push((method, code, counter));
        }
    }
}
