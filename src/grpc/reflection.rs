//! Descriptions of the calls, as tools such as `grpcurl` ask for them. An unknown name is a normal answer, after which the next request is
//! read.

use crate::{protocol, words::clipped};
use futures_util::{Stream, StreamExt};
use prost_reflect::{DescriptorPool, FileDescriptor};
use std::pin::Pin;
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_reflection::{
    pb::v1::{
        self, ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
        ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    },
    server::v1::ServerReflection,
};

/// The service.
pub(super) struct Reflection {
    definitions: DescriptorPool,
}

impl Reflection {
    pub(super) fn new() -> Reflection {
        let mut definitions =
            DescriptorPool::decode(protocol::DESCRIPTORS).expect("the build wrote the definitions");
        definitions
            .decode_file_descriptor_set(v1::FILE_DESCRIPTOR_SET)
            .expect("the library has its own definition");
        Reflection { definitions }
    }
}

#[tonic::async_trait]
impl ServerReflection for Reflection {
    type ServerReflectionInfoStream =
        Pin<Box<dyn Stream<Item = Result<ServerReflectionResponse, Status>> + Send>>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let definitions = self.definitions.clone();
        let answers = request.into_inner().map(move |asked| asked.map(|asked| answer(&definitions, asked)));
        Ok(Response::new(Box::pin(answers)))
    }
}

fn answer(definitions: &DescriptorPool, asked: ServerReflectionRequest) -> ServerReflectionResponse {
    let answer = match &asked.message_request {
        Some(MessageRequest::FileByFilename(name)) => {
            definitions.get_file_by_name(name).map(|file| encoded(&file)).ok_or_else(|| unknown("file", name))
        }
        Some(MessageRequest::FileContainingSymbol(name)) => {
            file_of(definitions, name).map(|file| encoded(&file)).ok_or_else(|| unknown("symbol", name))
        }
        Some(MessageRequest::FileContainingExtension(asked)) => {
            Err(unknown("extension of", &asked.containing_type))
        }
        // There are no extensions. Some clients would fail if this were reported as an error.
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => {
            let none = ExtensionNumberResponse { base_type_name: name.clone(), ..Default::default() };
            Ok(MessageResponse::AllExtensionNumbersResponse(none))
        }
        Some(MessageRequest::ListServices(_)) => {
            let service = definitions.services();
            let service = service.map(|service| ServiceResponse { name: service.full_name().to_owned() });
            let service = service.collect();
            Ok(MessageResponse::ListServicesResponse(ListServiceResponse { service }))
        }
        None => Err((Code::InvalidArgument, "the message asks for nothing that is known".to_owned())),
    };
    let answer = answer.unwrap_or_else(|(code, error_message)| {
        MessageResponse::ErrorResponse(ErrorResponse { error_code: code as i32, error_message })
    });
    ServerReflectionResponse {
        valid_host: asked.host.clone(),
        original_request: Some(asked),
        message_response: Some(answer),
    }
}

fn unknown(what: &str, name: &str) -> (Code, String) {
    (Code::NotFound, format!("there is no {what} {:?}", clipped(name)))
}

fn encoded(file: &FileDescriptor) -> MessageResponse {
    let file_descriptor_proto = vec![file.encode_to_vec()];
    MessageResponse::FileDescriptorResponse(FileDescriptorResponse { file_descriptor_proto })
}

/// The file that defines a service, a message or an enumeration with this full name, or a part of one.
fn file_of(definitions: &DescriptorPool, name: &str) -> Option<FileDescriptor> {
    let (of, own) = name.rsplit_once('.').unwrap_or(("", name));
    let service = definitions.services().find(|service| {
        service.full_name() == name
            || (service.full_name() == of && service.methods().any(|method| method.name() == own))
    });
    let message = || {
        definitions.all_messages().find(|message| {
            let is_part = || {
                message.get_field_by_name(own).is_some() || message.oneofs().any(|oneof| oneof.name() == own)
            };
            message.full_name() == name || (message.full_name() == of && is_part())
        })
    };
    let word = || {
        definitions
            .all_enums()
            .find(|words| words.full_name() == name || words.values().any(|value| value.full_name() == name))
    };
    let service = service.map(|service| service.parent_file());
    let message = || message().map(|message| message.parent_file());
    service.or_else(message).or_else(|| word().map(|words| words.parent_file()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(asked: MessageRequest) -> MessageResponse {
        let asked = ServerReflectionRequest { host: "here".into(), message_request: Some(asked) };
        let told = answer(&Reflection::new().definitions, asked.clone());
        assert_eq!((told.valid_host.as_str(), told.original_request), ("here", Some(asked)));
        told.message_response.expect("an answer")
    }

    #[test]
    fn symbols_and_their_parts_are_found_in_their_files() {
        let file = |name: &str| {
            let told = file_of(&Reflection::new().definitions, name);
            told.map(|file| file.name().to_owned()).unwrap_or_default()
        };
        for name in [
            "inference.GRPCInferenceService",
            "inference.GRPCInferenceService.ModelInfer",
            "inference.ModelInferRequest",
            "inference.ModelInferRequest.InferInputTensor",
            "inference.ModelInferRequest.model_name",
            "inference.InferParameter.parameter_choice",
        ] {
            assert_eq!(file(name), file("inference.GRPCInferenceService"), "{name}");
            assert!(!file(name).is_empty());
        }
        for name in ["inference.DataType", "inference.TYPE_FP32", "inference.ModelConfig.max_batch_size"] {
            assert_eq!(file(name), file("inference.ModelConfig"), "{name}");
        }
        for name in ["", ".", "inference", "inference.Nothing", "inference.ModelInferRequest.nothing"] {
            assert_eq!(file(name), "", "{name}");
        }
        assert!(!file("grpc.reflection.v1.ServerReflection").is_empty());
    }

    #[test]
    fn what_there_is_not_is_told_in_its_place() {
        for asked in [
            MessageRequest::FileContainingSymbol("inference.Nothing".into()),
            MessageRequest::FileByFilename("nothing.proto".into()),
            MessageRequest::FileContainingExtension(v1::ExtensionRequest::default()),
        ] {
            let MessageResponse::ErrorResponse(told) = ask(asked.clone()) else { panic!("{asked:?}") };
            assert_eq!(told.error_code, Code::NotFound as i32, "{told:?}");
            assert!(told.error_message.starts_with("there is no "), "{told:?}");
        }
        let MessageResponse::ListServicesResponse(all) = ask(MessageRequest::ListServices(String::new()))
        else {
            panic!("a list")
        };
        let names: Vec<String> = all.service.into_iter().map(|service| service.name).collect();
        for name in
            ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "inference.GRPCInferenceService"]
        {
            assert!(names.iter().any(|known| known == name), "{name} is not in {names:?}");
        }
    }
}
