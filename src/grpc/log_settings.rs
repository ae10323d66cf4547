//! The settings of the log, as the body and the reply that HTTP uses.

use crate::protocol::inference::{log_settings_request, log_settings_response};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The body of a call with these settings.
pub(super) fn body(settings: BTreeMap<String, log_settings_request::SettingValue>) -> Vec<u8> {
    use log_settings_request::setting_value::ParameterChoice;
    let value = |setting: log_settings_request::SettingValue| match setting.parameter_choice {
        Some(ParameterChoice::BoolParam(value)) => value.into(),
        Some(ParameterChoice::Uint32Param(value)) => value.into(),
        Some(ParameterChoice::StringParam(value)) => value.into(),
        None => Value::Null,
    };
    let settings: Map<_, _> = settings.into_iter().map(|(name, setting)| (name, value(setting))).collect();
    Value::Object(settings).to_string().into_bytes()
}

/// The reply with these settings.
pub(super) fn reply(settings: Map<String, Value>) -> BTreeMap<String, log_settings_response::SettingValue> {
    use log_settings_response::setting_value::ParameterChoice;
    let value = |setting: Value| {
        let parameter_choice = Some(match setting {
            Value::Bool(value) => ParameterChoice::BoolParam(value),
            Value::String(value) => ParameterChoice::StringParam(value),
            number => {
                let number = number.as_u64().and_then(|number| u32::try_from(number).ok());
                ParameterChoice::Uint32Param(number.unwrap_or(u32::MAX))
            }
        });
        log_settings_response::SettingValue { parameter_choice }
    };
    settings.into_iter().map(|(name, setting)| (name, value(setting))).collect()
}
