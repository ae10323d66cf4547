//! The parameters of calls that load or unload a model.

use super::status;
use crate::{
    error::InferError,
    http::wire::repository::Load,
    protocol::inference::{ModelRepositoryParameter, model_repository_parameter},
};
use std::collections::BTreeMap;
use tonic::Status;

/// The model that a call is about. KServe's definition has the model's name in the field that is the repository's in Triton's definition.
pub(super) fn model_of(repository: String, model: String) -> Result<String, Status> {
    if model.is_empty() {
        return Ok(repository);
    }
    one_repository(&repository).map(|()| model)
}

/// The only repository is the one without a name.
pub(super) fn one_repository(name: &str) -> Result<(), Status> {
    if name.is_empty() {
        return Ok(());
    }
    Err(status::of(&InferError::NotOffered(
        "there is one repository, without a name: leave repository_name out".into(),
    )))
}

/// The parameters of a load.
pub(super) fn load(parameters: BTreeMap<String, ModelRepositoryParameter>) -> Result<Load, InferError> {
    use model_repository_parameter::ParameterChoice::{BytesParam, StringParam};
    let mut load = Load::default();
    for (name, parameter) in parameters {
        match parameter.parameter_choice {
            Some(BytesParam(bytes)) if name != "config" => load.file(&name, bytes)?,
            Some(StringParam(text)) => load.config(&name, Some(text))?,
            _ => load.config(&name, None)?,
        }
    }
    Ok(load)
}

/// The parameters of an unload, as the body that HTTP uses.
pub(super) fn unload_body(parameters: BTreeMap<String, ModelRepositoryParameter>) -> Vec<u8> {
    use model_repository_parameter::ParameterChoice;
    let value = |parameter: ModelRepositoryParameter| match parameter.parameter_choice {
        Some(ParameterChoice::BoolParam(value)) => value.into(),
        Some(ParameterChoice::Int64Param(value)) => value.into(),
        Some(ParameterChoice::StringParam(value)) => value.into(),
        Some(ParameterChoice::BytesParam(_)) | None => serde_json::Value::Null,
    };
    let parameters = parameters.into_iter().map(|(name, parameter)| (name, value(parameter)));
    let parameters: serde_json::Map<String, serde_json::Value> = parameters.collect();
    serde_json::json!({ "parameters": parameters }).to_string().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model_repository_parameter::ParameterChoice;

    #[test]
    fn a_configuration_in_bytes_is_told_what_it_must_be() {
        let said = |choice| {
            let parameter = ModelRepositoryParameter { parameter_choice: Some(choice) };
            load(BTreeMap::from([("config".to_owned(), parameter)]))
                .map(|_| ())
                .map_err(|why| why.to_string())
        };
        assert_eq!(said(ParameterChoice::StringParam("{}".into())), Ok(()));
        for other in [ParameterChoice::BytesParam("{}".into()), ParameterChoice::BoolParam(true)] {
            let expected = "the parameter config must be a string that holds JSON";
            assert_eq!(said(other), Err(expected.to_owned()));
        }
    }
}
