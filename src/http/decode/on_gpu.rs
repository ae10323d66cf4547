//! The way of a JPEG through a GPU's decoder: which ones go there, and what comes back.

use super::{
    DecodePool, Decoded, Staged,
    policy::{Load, is_for_gpu},
};
use crate::{
    engine::{
        Tensor,
        cuda::jpeg::{BATCH, HUNG, Job},
    },
    image::{self, Color, DataType, Format, Layout, Preprocess, Resize, plain_jpeg},
    models::{Form, ImageInput, Model},
};
use bytes::Bytes;
use std::{sync::atomic::Ordering, time::Instant};
use tokio::sync::oneshot;

impl DecodePool {
    /// The file's only frame, staged, if a GPU should decode it and can; otherwise the pool decodes it.
    pub(super) async fn on_gpu(&self, bytes: &Bytes, model: &Model) -> Option<Decoded<Staged>> {
        let decoder = self.jpeg.as_ref()?;
        let load =
            Load { threads: self.threads, in_pool: self.jobs(), on_gpu: decoder.waiting(), batch: BATCH };
        if !is_for_gpu(&load) || Format::sniff(bytes) != Some(Format::Jpeg) {
            return None;
        }
        let started = Instant::now();
        let input = model.image.as_ref().filter(|input| input.planes.is_none())?;
        // What the pool would refuse is left to the pool.
        image::header(bytes, &self.limits).ok()?;
        let jpeg = plain_jpeg(bytes)?;
        let (width, height) = jpeg.seen();
        let to = item(input, width, height);
        to.takes((width, height)).ok()?;
        // The GPU does not mirror.
        if matches!(to.resize, Resize::Multiple(_)) {
            return None;
        }
        let form = input.form(1, width, height);
        let share = self.budget.try_take(form.bytes as u64)?;
        let (reply, answer) = oneshot::channel();
        let placement = to.placement(width, height);
        decoder.decode(Job {
            bytes: bytes.clone(),
            jpeg,
            to,
            // The request may have been dropped.
            answer: Box::new(move |item| drop(reply.send(item))),
        });
        // If the GPU hangs, the pool decodes the file after all, while the request still waits.
        let item = tokio::time::timeout(HUNG, answer).await.ok()?.ok().flatten()?;
        self.gpu_jpegs.fetch_add(1, Ordering::Relaxed);
        let inputs = input.inputs(tensor(&item, form), (width, height));
        Some(Decoded { staged: Staged { inputs, placement }, took: started.elapsed(), share })
    }
}

/// What an image of this size becomes: pixels of bytes as the pool stages them, or the network's own input if that is bytes.
fn item(input: &ImageInput, width: u32, height: u32) -> Preprocess {
    let to = input.preprocess_for(width, height);
    if input.pixels.is_none() {
        return to;
    }
    let color = match to.color {
        Color::Gray => Color::Gray,
        Color::Rgb | Color::Bgr => Color::Rgb,
    };
    Preprocess {
        color,
        layout: Layout::Nhwc,
        datatype: DataType::Uint8,
        scale: 1.0,
        mean: [0.0; 3],
        std: [1.0; 3],
        ..to
    }
}

fn tensor(item: &[u8], form: Form<'_>) -> Tensor {
    let Form { datatype, shape, bytes, staging, .. } = form;
    assert_eq!(item.len(), bytes, "bytes of an item");
    let data = match staging {
        Some(staging) => {
            let mut slot = staging.slot();
            slot.copy_from_slice(item);
            slot.freeze()
        }
        None => Bytes::copy_from_slice(item),
    };
    Tensor { datatype, shape, data }
}
