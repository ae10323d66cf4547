//! Which lines the log has: `log_filter`, until somebody who controls the server says otherwise.

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::{fmt, sync::Arc};
use tracing::{Metadata, Subscriber, callsite::rebuild_interest_cache, span, subscriber::Interest};
use tracing_subscriber::{
    EnvFilter,
    filter::{LevelFilter, Targets},
    layer::{Context, Filter},
};

/// The log target of the library that watches folders.
const WATCHES_FOLDERS: &str = "notify";

/// The filter of the process's log, which may be changed. The default belongs to no log: it lets nothing through and cannot be changed.
#[derive(Clone, Default)]
pub struct LogFilter(Option<Arc<Handle>>);

struct Handle {
    now: Mutex<Now>,
    put: Box<Put>,
}

/// Puts a filter in force, and returns its level; or why it is none.
type Put = dyn Fn(&str) -> Result<LevelFilter, String> + Send + Sync;

/// A filter that is in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Now {
    /// The filter, as `EnvFilter` reads it.
    pub text: String,
    /// The most talkative level of which it lets something through.
    pub level: LevelFilter,
}

impl LogFilter {
    /// The filter in force.
    pub fn now(&self) -> Now {
        let off = || Now { text: "off".into(), level: LevelFilter::OFF };
        self.0.as_ref().map_or_else(off, |handle| handle.now.lock().clone())
    }

    /// Puts another filter in its place, until the process ends. The log tells of it as long as the old one is in force.
    ///
    /// # Errors
    /// It is no filter, for this reason, and the old one stays.
    pub fn set(&self, text: &str) -> Result<(), String> {
        let handle = self.0.as_ref().ok_or("there is no log")?;
        let mut now = handle.now.lock();
        let level = (handle.put)(text)?;
        *now = Now { text: text.to_owned(), level };
        Ok(())
    }
}

impl fmt::Debug for LogFilter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("LogFilter").field(&self.now().text).finish()
    }
}

type Parsed<S> = Box<dyn Filter<S> + Send + Sync>;

/// A filter that can be replaced while it is used. Each request asks it some dozen times, so nobody takes a lock.
pub(super) struct Changeable<S>(Arc<ArcSwap<Parsed<S>>>);

impl<S: Subscriber + 'static> Changeable<S> {
    /// This filter, and the handle that changes it.
    ///
    /// # Errors
    /// It is no filter, for this reason.
    pub(super) fn new(text: &str) -> Result<(Changeable<S>, LogFilter), String> {
        let first = parsed(text)?;
        let now = Now { text: text.to_owned(), level: level(&first) };
        let current = Arc::new(ArcSwap::from_pointee(first));
        let replaced = Arc::clone(&current);
        let put = move |text: &str| {
            let filter = parsed(text)?;
            let level = level(&filter);
            tracing::info!(filter = text, "another log filter");
            replaced.store(Arc::new(filter));
            rebuild_interest_cache();
            Ok(level)
        };
        let handle = Handle { now: Mutex::new(now), put: Box::new(put) };
        Ok((Changeable(current), LogFilter(Some(Arc::new(handle)))))
    }
}

fn level<S>(filter: &Parsed<S>) -> LevelFilter {
    filter.max_level_hint().unwrap_or(LevelFilter::TRACE)
}

impl<S: Subscriber> Filter<S> for Changeable<S> {
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        self.0.load().enabled(metadata, context)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        self.0.load().callsite_enabled(metadata)
    }

    fn event_enabled(&self, event: &tracing::Event<'_>, context: &Context<'_, S>) -> bool {
        self.0.load().event_enabled(event, context)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        self.0.load().max_level_hint()
    }

    fn on_new_span(&self, attributes: &span::Attributes<'_>, id: &span::Id, context: Context<'_, S>) {
        self.0.load().on_new_span(attributes, id, context);
    }

    fn on_record(&self, id: &span::Id, values: &span::Record<'_>, context: Context<'_, S>) {
        self.0.load().on_record(id, values, context);
    }

    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        self.0.load().on_enter(id, context);
    }

    fn on_exit(&self, id: &span::Id, context: Context<'_, S>) {
        self.0.load().on_exit(id, context);
    }

    fn on_close(&self, id: span::Id, context: Context<'_, S>) {
        self.0.load().on_close(id, context);
    }
}

/// A filter with the meaning that it has for `EnvFilter`. `EnvFilter` itself tracks spans behind a process-wide lock, which each
/// request would take a dozen times. So it is used only if the filter mentions spans; otherwise the cheaper [`Targets`] is.
fn parsed<S: Subscriber>(filter: &str) -> Result<Box<dyn Filter<S> + Send + Sync>, String> {
    let quiet = format!("{WATCHES_FOLDERS}=error");
    let mut parts: Vec<_> = filter.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    // Quiet by default: the watching library warns about each folder that is removed, because it can no longer watch it.
    let lower: Vec<_> = parts.iter().map(|part| part.to_ascii_lowercase()).collect();
    let of_all = lower.iter().any(|part| ["warn", "info", "debug", "trace"].contains(&&**part));
    if of_all && !lower.iter().any(|part| part.starts_with(WATCHES_FOLDERS)) {
        parts.push(&quiet);
    }
    let text = parts.join(",");
    let with_spans = EnvFilter::builder().parse(&text).map_err(|error| error.to_string())?;
    Ok(match text.parse::<Targets>() {
        Ok(targets) if !text.contains('[') => Box::new(targets),
        _ => Box::new(with_spans),
    })
}
