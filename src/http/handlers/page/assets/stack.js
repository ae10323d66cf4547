// What is in a file, as far as it can be shown: a picture, or a stack of frames.

import { leftOfWebp, swaps, upright } from "./orient.js";
import { openTiff } from "./tiff.js";

/** Larger files are sent as well, but not held here. */
const SHOWN_BYTES_MAX = 512 << 20;
/** So much of the brightest and darkest pixels does not count for the contrast. */
const CLIPPED = 0.001;

/**
 * `{ width, height, frames, paint(index) }`, where `paint` gives something to draw; or `{ reason }`. Unless they are `asStored`, as a
 * fitter has its frames, pictures are turned as the file says.
 */
export async function open(file, { asStored = false } = {}) {
  if (file.size > SHOWN_BYTES_MAX) return { reason: "it is too large to show here" };
  const head = new Uint8Array(await file.slice(0, 12).arrayBuffer());
  const starts = (...bytes) => bytes.every((byte, index) => head[index] === byte);
  try {
    if (starts(0x49, 0x49) || starts(0x4d, 0x4d)) return painted(openTiff(await file.arrayBuffer()), asStored);
    if (starts(0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59)) return painted(openNpy(await file.arrayBuffer()), true);
    const webp = starts(0x52, 0x49, 0x46, 0x46) && String.fromCharCode(...head.slice(8)) === "WEBP";
    const bitmap = upright(await createImageBitmap(file), webp ? await leftOfWebp(file) : 1);
    return { width: bitmap.width, height: bitmap.height, frames: 1, paint: async () => bitmap };
  } catch (error) {
    return { reason: error instanceof DOMException ? "the browser cannot show this format" : `the browser cannot show it: ${error.message}` };
  }
}

const NPY = {
  u1: Uint8Array, i1: Int8Array, u2: Uint16Array, i2: Int16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array, f8: Float64Array,
};

function openNpy(buffer) {
  const view = new DataView(buffer);
  const [length, at] = view.getUint8(6) === 1 ? [view.getUint16(8, true), 10] : [view.getUint32(8, true), 12];
  const head = new TextDecoder("latin1").decode(new Uint8Array(buffer, at, length));
  const [, type] = head.match(/'descr':\s*'[<|]([uif]\d)'/) || [];
  const [, dimensions] = head.match(/'shape':\s*\(([\d,\s]+)\)/) || [];
  if (!NPY[type] || !dimensions || !head.includes("'fortran_order': False")) throw new Error("its layout is not supported");
  const shape = dimensions.split(",").map((text) => text.trim()).filter(Boolean).map(Number);
  const [frames, height, width] = shape.length === 2 ? [1, ...shape] : shape;
  const size = width * height;
  const whole = buffer.slice(at + length, at + length + frames * size * NPY[type].BYTES_PER_ELEMENT);
  const all = new NPY[type](whole);
  if (shape.length > 3 || !size || all.length < frames * size) throw new Error("its shape is not supported, or does not fit its data");
  return {
    width, height, frames, channels: 1, eight: type === "u1",
    frame: async (index) => Float32Array.from(all.subarray(index * size, (index + 1) * size)),
  };
}

/** Frames as pictures, all with the contrast that the first one asks for. */
function painted(stack, asStored) {
  let range = null;
  const orientation = asStored ? () => 1 : stack.orientation;
  const [width, height] = swaps(orientation(0)) ? [stack.height, stack.width] : [stack.width, stack.height];
  return {
    width,
    height,
    frames: stack.frames,
    async paint(index) {
      const values = await stack.frame(index);
      range ??= stack.eight ? [0, 255] : contrast(values);
      const image = new ImageData(stack.width, stack.height);
      const [dark, bright] = range;
      const gain = 255 / (bright - dark || 1);
      const { channels } = stack;
      for (let pixel = 0; pixel < stack.width * stack.height; pixel += 1) {
        for (let channel = 0; channel < 3; channel += 1) {
          const value = values[pixel * channels + (channels > 1 ? channel : 0)];
          image.data[pixel * 4 + channel] = (value - dark) * gain;
        }
        image.data[pixel * 4 + 3] = 255;
      }
      return upright(await createImageBitmap(image), orientation(index));
    },
  };
}

function contrast(values) {
  const sorted = Float32Array.from(values).filter(Number.isFinite).sort();
  if (sorted.length === 0) return [0, 1];
  return [sorted[Math.floor(sorted.length * CLIPPED)], sorted[Math.ceil((sorted.length - 1) * (1 - CLIPPED))]];
}
