//! Decodes messages that may be large. The memory that a message needs is computed from its bytes and charged to the call first, because an
//! entry of two bytes becomes hundreds, and a packed message may have any length. Large ones are decoded on the decode pool.

use super::status;
use crate::{
    error::InferError,
    http::{
        admission::Permit,
        decode::{DecodePool, LONG_NUMBERS, Step},
    },
    protocol::{
        inference::{InferTensorContents, ModelInferRequest, RepositoryModelLoadRequest},
        torchserve::PredictionsRequest,
    },
};
use bytes::{Buf, Bytes};
use prost::{
    Message,
    encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field},
};
use std::{marker::PhantomData, sync::Arc};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder},
};
use tonic_prost::{ProstCodec, ProstEncoder};

/// How many inputs, outputs, raw contents and parameters one message may have in all. With a few hundred bytes each, they take no more than
/// a megabyte or two, which is not charged.
const ENTRIES_MAX: u64 = 4096;

/// Less is decoded in place: a hand-over to the pool would take longer.
const INLINE_BYTES_MAX: usize = 32 << 10;

/// A vector that grows has at most twice the capacity that it needs.
const GROWN: u64 = 2;

/// What a message takes in memory once it is decoded.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    entries: u64,
    /// Bytes of the elements of typed tensors and of shapes.
    bytes: u64,
}

/// A message whose memory can be computed from its bytes.
pub(super) trait Countable: Message + Default + 'static {
    /// A field whose bytes decoding leaves where they are.
    const KEPT: u32;

    /// Counts a field; `None` if the bytes are not such a message. Decoding stops at the same place.
    fn count(tag: u32, field: Field<'_>, tally: &mut Tally) -> Option<()>;
}

/// The bytes of a field that has a length.
type Field<'a> = Option<&'a [u8]>;

/// Calls `count` for each field of a message.
fn each(mut message: &[u8], mut count: impl FnMut(u32, Field<'_>) -> Option<()>) -> Option<()> {
    while !message.is_empty() {
        let (tag, kind) = decode_key(&mut message).ok()?;
        if kind == WireType::LengthDelimited {
            let length = usize::try_from(decode_varint(&mut message).ok()?).ok()?;
            let (field, behind) = message.split_at_checked(length)?;
            message = behind;
            count(tag, Some(field))?;
        } else {
            skip_field(kind, tag, &mut message, DecodeContext::default()).ok()?;
            count(tag, None)?;
        }
    }
    Some(())
}

/// How consecutive numbers are encoded.
#[derive(Clone, Copy)]
enum Written {
    /// Each number ends with the first byte below 128.
    Varint,
    Fixed(usize),
}

/// Bytes of memory for a field with one or many numbers of `size` bytes each.
fn numbers(field: Field<'_>, written: Written, size: u64) -> u64 {
    let count = match (field, written) {
        (None, _) => 1,
        (Some(packed), Written::Varint) => packed.iter().filter(|byte| **byte < 0x80).count(),
        (Some(packed), Written::Fixed(width)) => packed.len() / width,
    };
    count as u64 * size * GROWN
}

impl Countable for ModelInferRequest {
    /// Raw contents.
    const KEPT: u32 = 7;

    fn count(tag: u32, field: Field<'_>, tally: &mut Tally) -> Option<()> {
        match tag {
            // Inputs.
            5 => {
                tally.entries += 1;
                each(field?, |tag, field| {
                    match tag {
                        3 => tally.bytes += numbers(field, Written::Varint, 8),
                        4 => tally.entries += 1,
                        5 => each(field?, |tag, field| {
                            tally.bytes += elements(tag, field);
                            Some(())
                        })?,
                        _ => (),
                    }
                    Some(())
                })
            }
            // Outputs.
            6 => {
                tally.entries += 1;
                each(field?, |tag, _| {
                    tally.entries += u64::from(tag == 2);
                    Some(())
                })
            }
            // Parameters and raw contents.
            4 | 7 => {
                tally.entries += 1;
                Some(())
            }
            _ => Some(()),
        }
    }
}

/// Bytes of memory for elements of typed contents.
fn elements(tag: u32, field: Field<'_>) -> u64 {
    match tag {
        1 => numbers(field, Written::Varint, 1),
        2 | 4 => numbers(field, Written::Varint, 4),
        3 | 5 => numbers(field, Written::Varint, 8),
        6 => numbers(field, Written::Fixed(4), 4),
        7 => numbers(field, Written::Fixed(8), 8),
        // A handle for each text; the text itself stays in the message.
        8 => GROWN * size_of::<Bytes>() as u64,
        _ => 0,
    }
}

impl Countable for RepositoryModelLoadRequest {
    /// Files.
    const KEPT: u32 = 3;

    fn count(tag: u32, _: Field<'_>, tally: &mut Tally) -> Option<()> {
        tally.entries += u64::from(tag == 3);
        Some(())
    }
}

impl Countable for PredictionsRequest {
    /// Files.
    const KEPT: u32 = 3;

    fn count(tag: u32, _: Field<'_>, tally: &mut Tally) -> Option<()> {
        tally.entries += u64::from(tag == 3);
        Some(())
    }
}

/// Bytes of memory of a decoded message: its encoded length, and its elements.
pub(super) fn held(message: &ModelInferRequest) -> u64 {
    fn room<T>(values: &Vec<T>) -> usize {
        values.capacity() * size_of::<T>()
    }
    let typed = |contents: &InferTensorContents| {
        let InferTensorContents {
            bool_contents,
            int_contents,
            int64_contents,
            uint_contents,
            uint64_contents,
            fp32_contents,
            fp64_contents,
            bytes_contents,
        } = contents;
        room(bool_contents)
            + room(int_contents)
            + room(int64_contents)
            + room(uint_contents)
            + room(uint64_contents)
            + room(fp32_contents)
            + room(fp64_contents)
            + room(bytes_contents)
    };
    let elements = message
        .inputs
        .iter()
        .map(|input| room(&input.shape) + input.contents.as_ref().map_or(0, typed))
        .sum::<usize>();
    (message.encoded_len() + elements) as u64
}

/// Encodes messages as usual, and leaves those of one call to be decoded, with a charge.
pub(super) struct Counted<E, D> {
    /// The permit of the call.
    permit: Option<Arc<Permit>>,
    messages: PhantomData<(E, D)>,
}

impl<E, D> Counted<E, D> {
    pub(super) fn charged_to(permit: Option<Arc<Permit>>) -> Counted<E, D> {
        Counted { permit, messages: PhantomData }
    }
}

impl<E: Message + 'static, D: Countable> Codec for Counted<E, D> {
    type Encode = E;
    type Decode = Encoded<D>;
    type Encoder = ProstEncoder<E>;
    type Decoder = Counted<E, D>;

    fn encoder(&mut self) -> ProstEncoder<E> {
        ProstCodec::<E, D>::raw_encoder(BufferSettings::default())
    }

    fn decoder(&mut self) -> Counted<E, D> {
        Counted::charged_to(self.permit.clone())
    }
}

impl<E: Message + 'static, D: Countable> Decoder for Counted<E, D> {
    type Item = Encoded<D>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Encoded<D>>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        Ok(Some(Encoded { bytes, permit: self.permit.clone(), message: PhantomData }))
    }
}

/// A message as it came.
pub(super) struct Encoded<D> {
    bytes: Bytes,
    /// That of the call.
    permit: Option<Arc<Permit>>,
    message: PhantomData<fn() -> D>,
}

impl<D: Countable + Send> Encoded<D> {
    /// Decodes it, if it is large on the pool: fifty million numbers of a byte each take a second.
    pub(super) async fn decoded(self, pool: &DecodePool) -> Result<D, Status> {
        if self.bytes.len() < INLINE_BYTES_MAX {
            return self.read();
        }
        let is_slow = self.read_bytes() >= LONG_NUMBERS;
        // What it is for, and how urgent that is, is not known yet.
        pool.run_slow(Step::Request(1), is_slow, move || self.read()).await?
    }

    /// Bytes that are not left where they are.
    fn read_bytes(&self) -> usize {
        let (mut fields, mut bytes) = (0, self.bytes.len());
        let _ = each(&self.bytes, |tag, field| {
            fields += 1;
            if tag == D::KEPT {
                bytes -= field?.len();
            }
            // What has more is refused, or is not left where it is.
            (fields <= ENTRIES_MAX).then_some(())
        });
        bytes
    }

    fn read(self) -> Result<D, Status> {
        let Encoded { bytes: message, permit, .. } = self;
        let mut tally = Tally::default();
        // If counting breaks off, decoding fails at the same place and says why.
        let _ = each(&message, |tag, field| D::count(tag, field, &mut tally));
        let Tally { entries, bytes } = tally;
        if entries > ENTRIES_MAX {
            return Err(status::of(&InferError::BadRequest(format!(
                "the message has {entries} inputs, outputs, raw contents and parameters, more than the {ENTRIES_MAX} that it \
                 may have"
            ))));
        }
        if let Some(permit) = &permit {
            // A packed message is unpacked by now. It is charged here, not at the end of the call: how long the client delays that end is
            // unknown.
            let bytes = message.len() as u64 + bytes;
            permit.cover_all("the decoded message in bytes", bytes)?;
        }
        D::decode(message).map_err(|error| Status::internal(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        http::admission::{Admission, AdmissionLimits},
        image::Limits,
        protocol::inference::{
            InferParameter, infer_parameter::ParameterChoice, model_infer_request::InferInputTensor,
        },
    };
    use futures_util::{FutureExt, poll};
    use proptest::prelude::*;
    use std::sync::mpsc;
    use tonic::Code;

    fn tally<D: Countable>(message: &[u8]) -> Tally {
        let mut tally = Tally::default();
        let _ = each(message, |tag, field| D::count(tag, field, &mut tally));
        tally
    }

    /// The result of reading a message in a call that may take `bytes_max` bytes, and how many bytes the call holds then.
    fn read<D: Countable>(message: Vec<u8>, bytes_max: u64) -> (Result<D, Status>, u64) {
        let limits = AdmissionLimits { requests_in_flight_max: 1, bytes_in_flight_max: bytes_max };
        let permit = Arc::new(Admission::new(limits).admit().unwrap());
        (encoded(message, Some(Arc::clone(&permit))).read(), permit.bytes())
    }

    fn encoded<D: Countable>(bytes: Vec<u8>, permit: Option<Arc<Permit>>) -> Encoded<D> {
        Encoded { bytes: bytes.into(), permit, message: PhantomData }
    }

    fn with(contents: InferTensorContents) -> ModelInferRequest {
        let input = InferInputTensor { contents: Some(contents), ..InferInputTensor::default() };
        ModelInferRequest { inputs: vec![input], ..ModelInferRequest::default() }
    }

    #[test]
    fn a_message_of_a_great_many_entries_is_refused_before_they_are_made() {
        // Entries of two bytes each: an input, an output, a raw content, a parameter; and a parameter of an input and one of an output.
        for entry in
            [&[0x2a, 0][..], &[0x32, 0], &[0x3a, 0], &[0x22, 0], &[0x2a, 2, 0x22, 0], &[0x32, 2, 0x12, 0]]
        {
            let each = 1 + u64::from(entry.len() > 2);
            let most = ENTRIES_MAX / each;
            let (fits, _) = read::<ModelInferRequest>(entry.repeat(most as usize), 1 << 30);
            assert!(fits.is_ok(), "{fits:?}");
            let refused = read::<ModelInferRequest>(entry.repeat(2_000_000), 1 << 30).0.unwrap_err();
            assert_eq!(refused.code(), Code::InvalidArgument);
            let told = format!(
                "{} inputs, outputs, raw contents and parameters, more than the 4096",
                2_000_000 * each
            );
            assert!(refused.message().contains(&told), "{}", refused.message());
        }
        let refused = read::<RepositoryModelLoadRequest>([0x1a, 0].repeat(5000), 1 << 30).0.unwrap_err();
        assert!(refused.message().contains("has 5000 inputs"), "{}", refused.message());
    }

    #[test]
    fn what_elements_become_is_set_aside_before_they_are_made() {
        let count = 100_000;
        for (contents, each) in [
            (InferTensorContents { bytes_contents: vec![Bytes::new(); count], ..Default::default() }, 32),
            (InferTensorContents { int64_contents: vec![1; count], ..Default::default() }, 8),
            (InferTensorContents { uint64_contents: vec![1; count], ..Default::default() }, 8),
            (InferTensorContents { int_contents: vec![1; count], ..Default::default() }, 4),
            (InferTensorContents { uint_contents: vec![1; count], ..Default::default() }, 4),
            (InferTensorContents { fp32_contents: vec![1.0; count], ..Default::default() }, 4),
            (InferTensorContents { fp64_contents: vec![1.0; count], ..Default::default() }, 8),
            (InferTensorContents { bool_contents: vec![true; count], ..Default::default() }, 1),
        ] {
            let sent = with(contents).encode_to_vec();
            let needed = sent.len() as u64 + 2 * each * count as u64;
            let (refused, held) = read::<ModelInferRequest>(sent.clone(), needed - 1);
            let refused = refused.unwrap_err();
            assert_eq!((refused.code(), held), (Code::ResourceExhausted, 0));
            let told =
                format!("the decoded message in bytes is {needed}, more than the limit of {}", needed - 1);
            assert!(refused.message().starts_with(&told), "{}", refused.message());
            let (fits, held) = read::<ModelInferRequest>(sent, needed);
            assert_eq!((fits.map(|message| super::held(&message) <= needed).unwrap(), held), (true, needed));
        }
    }

    #[test]
    fn numbers_that_come_one_by_one_count_as_those_that_come_packed() {
        let packed = with(InferTensorContents { int64_contents: vec![1; 300], ..Default::default() });
        // Field 3 of the contents, a number of two bytes, 300 times.
        let alone = [0x18, 0x80, 0x01].repeat(300);
        let contents = [&[0x2a, 0x84, 0x07][..], &alone].concat();
        let input = [&[0x2a, 0x87, 0x07][..], &contents].concat();
        assert_eq!(
            ModelInferRequest::decode(&input[..]).unwrap().inputs[0]
                .contents
                .as_ref()
                .unwrap()
                .int64_contents
                .len(),
            300
        );
        assert_eq!(tally::<ModelInferRequest>(&input), tally::<ModelInferRequest>(&packed.encode_to_vec()));
    }

    #[test]
    fn what_is_no_message_is_told_as_such() {
        for junk in
            [&[0xff, 0xff, 0xff][..], &[0x2a, 5, 0], &[0x2a, 2, 0x2a, 9], &[0x0c], &[0x0b, 0x0c, 0x0f]]
        {
            let refused = read::<ModelInferRequest>(junk.to_vec(), 1 << 20).0.unwrap_err();
            assert_eq!(refused.code(), Code::Internal, "{junk:?}");
        }
    }

    #[tokio::test]
    async fn a_large_message_is_decoded_by_the_pool_and_one_of_many_numbers_in_its_turn() {
        let limits = Limits { side_max: 1, pixels_max: 1, frames_max: 1 };
        let pool = DecodePool::new(2, 1, limits).unwrap();
        let of = |contents| encoded::<ModelInferRequest>(with(contents).encode_to_vec(), None);
        let numbers = |count| of(InferTensorContents { int_contents: vec![1; count], ..Default::default() });
        let raw =
            ModelInferRequest { raw_input_contents: vec![vec![1; 8 << 20].into()], ..Default::default() };
        let raw = encoded::<ModelInferRequest>(raw.encode_to_vec(), None);
        // Two that run until they are told, the first with the only turn there is.
        let hold = |is_slow| {
            let (release, released) = mpsc::channel::<()>();
            let work = move || released.recv().is_err();
            (release, Box::pin(pool.run_slow(Step::Request(0), is_slow, work)))
        };
        let ((end_slow, mut slow), (end, mut other)) = (hold(true), hold(false));
        assert!(poll!(&mut slow).is_pending() && poll!(&mut other).is_pending());
        let count = |decoded: Result<ModelInferRequest, Status>| {
            decoded.map(|message| message.inputs[0].contents.as_ref().unwrap().int_contents.len()).unwrap()
        };
        assert_eq!(count(numbers(1000).decoded(&pool).now_or_never().unwrap()), 1000);
        let mut large = Box::pin(numbers(40_000).decoded(&pool));
        assert!(poll!(&mut large).is_pending());
        drop(end);
        assert_eq!((other.await, count(large.await)), (Ok(true), 40_000));
        let mut huge = Box::pin(numbers(5_000_000).decoded(&pool));
        assert!(poll!(&mut huge).is_pending());
        assert_eq!(raw.decoded(&pool).await.unwrap().raw_input_contents[0].len(), 8 << 20);
        assert!(poll!(&mut huge).is_pending());
        drop(end_slow);
        assert_eq!((slow.await, count(huge.await)), (Ok(true), 5_000_000));
    }

    proptest! {
        #[test]
        fn no_message_takes_more_than_its_bytes_told(
            shape in prop::collection::vec(any::<i64>(), 0..50),
            numbers in prop::collection::vec(any::<i64>(), 0..300),
            texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..300),
            wide in prop::collection::vec(any::<f64>(), 0..300),
            parameters in 0..9u64,
            inputs in 1..5usize,
        ) {
            let contents = InferTensorContents {
                int64_contents: numbers,
                bytes_contents: texts.into_iter().map(Bytes::from).collect(),
                fp64_contents: wide,
                ..Default::default()
            };
            let flag = InferParameter { parameter_choice: Some(ParameterChoice::BoolParam(true)) };
            let parameters = (0..parameters).map(|index| (index.to_string(), flag.clone()));
            let mut sent = with(contents);
            (sent.inputs[0].shape, sent.inputs[0].parameters) = (shape, parameters.collect());
            sent.inputs = vec![sent.inputs[0].clone(); inputs];
            let bytes = Bytes::from(sent.encode_to_vec());
            let told = tally::<ModelInferRequest>(&bytes);
            let entries = sent.inputs.iter().map(|input| 1 + input.parameters.len() as u64).sum::<u64>();
            prop_assert_eq!(told.entries, entries);
            let got = ModelInferRequest::decode(bytes.clone()).unwrap();
            // A vector allocates room for four elements at first.
            let first = inputs as u64 * 4 * (8 + 8 + 8 + 32);
            prop_assert!(held(&got) <= bytes.len() as u64 + told.bytes + first, "{} {:?}", held(&got), told);
        }

        #[test]
        fn whatever_is_decoded_has_been_counted(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let told = tally::<ModelInferRequest>(&bytes);
            if let Ok(got) = ModelInferRequest::decode(&bytes[..]) {
                let entries = got.inputs.len() + got.outputs.len() + got.raw_input_contents.len() + got.parameters.len();
                prop_assert!(told.entries >= entries as u64);
            }
        }
    }
}
