//! Arrow's IPC stream: one record batch per chunk. Units are metadata of the fields, conventions metadata of the schema.
//!
//! Common readers accept a stream without its end marker as complete. So an output that breaks off ends with a message whose announced
//! length is greater than what follows. Readers then report an error, and the bytes that do follow are the text of our error.

use super::{
    Counts, Encoder, Pieces, Status, Table,
    layout::{Kind, Layout, Values},
    schema::Schema,
};
use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt8Array, UInt32Array};
use arrow_ipc::writer::StreamEncoder;
use arrow_schema::{ArrowError, DataType, Field, Schema as Fields};
use bytes::Bytes;
use std::{collections::HashMap, sync::Arc};

/// Bytes of the marker at the end of a stream.
const END_MARKER_BYTES: usize = 8;

pub(super) struct Arrow {
    schema: Arc<Schema>,
    layout: Layout,
    fields: Arc<Fields>,
    /// `None` before [`Encoder::begin`].
    encoder: Option<StreamEncoder>,
}

impl Arrow {
    pub(super) fn new(schema: &Arc<Schema>, layout: Layout) -> Arrow {
        let fields: Vec<Field> = layout
            .columns
            .iter()
            .map(|column| {
                let datatype = match column.kind {
                    Kind::U8 => DataType::UInt8,
                    Kind::U32 => DataType::UInt32,
                    Kind::F32 => DataType::Float32,
                };
                let field = Field::new(&column.name, datatype, false);
                if column.unit.is_empty() {
                    return field;
                }
                field.with_metadata(HashMap::from([("unit".to_owned(), column.unit.to_owned())]))
            })
            .collect();
        let mut facts: HashMap<String, String> = schema.facts().into_iter().collect();
        facts.insert("pixel_origin".to_owned(), layout.origin.words().to_owned());
        facts.insert("frame_base".to_owned(), layout.frame_base.to_string());
        if layout.has_status {
            facts.insert("status_codes".to_owned(), Status::ALL.map(Status::name).join(" "));
        }
        let fields = Arc::new(Fields::new(fields).with_metadata(facts));
        Arrow { schema: Arc::clone(schema), layout, fields, encoder: None }
    }
}

fn failed(error: &ArrowError) -> String {
    format!("cannot write an Arrow stream: {error}")
}

impl Encoder for Arrow {
    fn begin(&mut self, _out: &mut Pieces) -> Result<(), String> {
        // The stream's head comes with the first batch, or with the end.
        self.encoder = Some(StreamEncoder::try_new(&self.fields).map_err(|error| failed(&error))?);
        Ok(())
    }

    fn rows(&mut self, table: Table, first: u64, out: &mut Pieces) -> Result<(), String> {
        if table.rows() == 0 {
            return Ok(());
        }
        let array = |values: Values| -> ArrayRef {
            match values {
                Values::U8(values) => Arc::new(UInt8Array::from(values)),
                Values::U32(values) => Arc::new(UInt32Array::from(values)),
                Values::F32(values) => Arc::new(Float32Array::from(values)),
            }
        };
        let columns = self.layout.values(&self.schema, table, first)?.into_iter().map(array).collect();
        let batch =
            RecordBatch::try_new(Arc::clone(&self.fields), columns).map_err(|error| failed(&error))?;
        let encoder = self.encoder.as_mut().ok_or("rows came before the beginning")?;
        let buffers = encoder.encode(&batch).map_err(|error| failed(&error))?;
        // The buffers of columns are the table's own, not copies.
        buffers.into_iter().map(Bytes::from_owner).for_each(|buffer| out.push(buffer));
        Ok(())
    }

    fn end(self: Box<Self>, _counts: &Counts) -> Result<Vec<Bytes>, String> {
        let encoder = self.encoder.ok_or("the end came before the beginning")?;
        let buffers = encoder.finish().map_err(|error| failed(&error))?;
        Ok(buffers.into_iter().map(Bytes::from_owner).collect())
    }

    fn error(self: Box<Self>, message: &str, _kind: &str, _counts: &Counts) -> Vec<u8> {
        let announced = (message.len() / 8 + 1) * 8;
        // The schema, if it has not been sent, without the end marker.
        let rest = self.encoder.and_then(|encoder| encoder.finish().ok()).unwrap_or_default();
        let mut out: Vec<u8> = rest.iter().flat_map(|buffer| &buffer[..]).copied().collect();
        out.truncate(out.len().saturating_sub(END_MARKER_BYTES));
        out.extend(u32::MAX.to_le_bytes());
        out.extend((announced as u32).to_le_bytes());
        out.extend(message.as_bytes());
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::tasks::localize::{testing::*, *};
    use arrow_array::{RecordBatch, cast::AsArray, types::Float32Type};
    use arrow_ipc::reader::StreamReader;

    fn read(bytes: &[u8]) -> Vec<Result<RecordBatch, String>> {
        StreamReader::try_new(bytes, None).unwrap().map(|batch| batch.map_err(|e| e.to_string())).collect()
    }

    #[test]
    fn chunks_are_batches_with_units() {
        let schema = schema(Model::Xynbsxsy);
        let tables = [&table(&schema, 3), &table(&schema, 0), &table(&schema, 2)];
        let batches = read(&bytes(Format::Arrow, &schema, &Options::default(), &tables));
        let batches: Vec<RecordBatch> = batches.into_iter().map(Result::unwrap).collect();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>(), [3, 2]);
        let fields = batches[0].schema();
        assert_eq!(fields.metadata()["pixel_origin"], "the center of the first pixel is (0, 0)");
        assert_eq!(fields.field_with_name("sigma_x_nm").unwrap().metadata()["unit"], "nm");
        let x = batches[0].column_by_name("x_nm").unwrap().as_primitive::<Float32Type>();
        assert_eq!(x.values()[..], [1050.0, 1150.0, 1250.0]);
    }

    #[test]
    fn a_stream_that_breaks_off_before_its_first_row_begins_with_its_schema() {
        let schema = schema(Model::Xynb);
        let out = broken_off(Format::Arrow, &schema, &[0], "frame 7 is cut off");
        let mut reader = StreamReader::try_new(&out[..], None).unwrap();
        assert_eq!(reader.schema().fields().len(), 14);
        assert!(reader.next().unwrap().is_err());
        assert!(out.ends_with(b"frame 7 is cut off"));
    }

    #[test]
    fn a_stream_that_breaks_off_is_an_error_to_readers() {
        let schema = schema(Model::Xynb);
        for message in ["", "page 3 is cut off", "12345678"] {
            let out = broken_off(Format::Arrow, &schema, &[3], message);
            let batches = read(&out);
            assert!(batches[0].is_ok());
            assert!(batches[1].is_err(), "{message:?}");
            assert!(out.ends_with(message.as_bytes()));
        }
    }
}
