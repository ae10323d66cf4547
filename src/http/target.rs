//! Which model a path names.

use super::Front;
use crate::{error::InferError, models::Model};
use axum::{
    extract::{FromRequestParts, RawPathParams},
    http::request::Parts,
};
use std::sync::Arc;

/// Suffix of a model's name in the path of a prediction of KServe's first protocol.
pub(super) const VERB: &str = ":predict";

/// The `{model}` and, where the route has one, the `{version}` of a path. Looked up in a map, never joined to a path.
pub(crate) struct Target {
    /// As the caller wrote it, percent-decoded.
    pub(crate) model: String,
    /// The same; `None` asks for the highest that can be served.
    pub(crate) version: Option<String>,
}

impl Target {
    /// What a caller wrote.
    pub(crate) fn new(model: String, version: Option<String>) -> Target {
        Target { model, version: version.map(|version| whole(&version).to_owned()) }
    }

    /// The same without [`VERB`] at the end of the path.
    ///
    /// # Errors
    /// The target as it is, and the verb if the path ends in another.
    pub(super) fn asked_to_predict(self) -> Result<Target, (Target, Option<String>)> {
        let last = self.version.as_ref().unwrap_or(&self.model);
        let Some(name) = last.strip_suffix(VERB).map(str::to_owned) else {
            let verb = last.split_once(':').map(|(_, verb)| verb.to_owned());
            return Err((self, verb));
        };
        Ok(match self.version {
            Some(_) => Target::new(self.model, Some(name)),
            None => Target::new(name, None),
        })
    }

    /// The model, if it can be served now.
    pub(crate) fn find(&self, front: &Front) -> Result<Arc<Model>, InferError> {
        let model = front.catalog.get(&self.model, self.version.as_deref())?;
        // Only a name of the catalog: it decides which log file the request's lines go to.
        tracing::Span::current().record("model", &*model.name);
        Ok(model)
    }

    /// The model, if it is ready: a device serves it, or is expected to, and no drain has begun. A client that asks for one model only,
    /// such as a load balancer, means the server as well.
    pub(crate) fn find_ready(&self, front: &Front) -> Result<Arc<Model>, InferError> {
        let model = self.find(front)?;
        if front.status.draining() {
            return Err(InferError::Draining);
        }
        front.queue.check_served(model.key)?;
        Ok(model)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Target {
    type Rejection = InferError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Target, InferError> {
        let model = segment(parts, state, "model").await?.unwrap_or_default();
        let version = segment(parts, state, "version").await?;
        Ok(Target::new(model, version))
    }
}

/// TorchServe's versions have a point: 1.0 is 1. Others are left as they were sent.
fn whole(version: &str) -> &str {
    let before = version.strip_suffix(".0");
    let is_whole = |digits: &&str| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    before.filter(is_whole).unwrap_or(version)
}

/// The part of a path at `{wanted}`, percent-decoded; `None` where its route has no such place.
pub(super) async fn segment<S: Send + Sync>(
    parts: &mut Parts,
    state: &S,
    wanted: &str,
) -> Result<Option<String>, InferError> {
    let names = RawPathParams::from_request_parts(parts, state)
        .await
        .map_err(|error| InferError::BadRequest(format!("the path cannot be read: {}", error.body_text())))?;
    Ok(names.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::{Target, whole};

    #[test]
    fn one_point_nothing_is_one_and_other_versions_stay_as_they_are() {
        for (sent, meant) in
            [("1.0", "1"), ("12", "12"), ("1.0.0", "1.0.0"), ("1.1", "1.1"), ("v1.0", "v1.0"), (".0", ".0")]
        {
            assert_eq!(whole(sent), meant);
        }
    }

    #[test]
    fn a_prediction_names_its_verb_at_the_end_of_its_path() {
        let of = |model: &str, version: Option<&str>| {
            let target = Target::new(model.into(), version.map(str::to_owned)).asked_to_predict();
            target.map(|target| (target.model, target.version)).map_err(|(_, verb)| verb)
        };
        assert_eq!(of("m:predict", None), Ok(("m".into(), None)));
        assert_eq!(of("m", Some("1.0:predict")), Ok(("m".into(), Some("1".into()))));
        assert_eq!(of("m", Some("1:explain")), Err(Some("explain".into())));
        assert_eq!(of("m", None), Err(None));
    }
}
