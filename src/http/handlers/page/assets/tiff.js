// Reads what of TIFF most files are: grey or RGB in strips or tiles, plain, deflate or LZW, classic or BigTIFF, and the stacks of
// ImageJ that have one directory for all frames. Only to show them: the server reads more, and is asked with the file itself.

const SIZES = { 1: 1, 2: 1, 3: 2, 4: 4, 6: 1, 8: 2, 9: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8 };
const FRAMES_MAX = 200_000;
const SIDE_MAX = 16_384;

/** A stack of frames, or an error that says why this file is not shown. */
export function openTiff(buffer) {
  const view = new DataView(buffer);
  const little = view.getUint16(0) === 0x4949;
  const big = view.getUint16(2, little) === 43;
  const u16 = (at) => view.getUint16(at, little);
  const u32 = (at) => view.getUint32(at, little);
  const u64 = (at) => Number(view.getBigUint64(at, little));
  const offset = big ? u64 : u32;

  const number = (type, at) =>
    type === 3 ? u16(at) : type === 4 || type === 13 ? u32(at) : type === 16 || type === 18 ? u64(at) : view.getUint8(at);

  function directory(at) {
    const tags = new Map();
    const count = big ? u64(at) : u16(at);
    const [first, length, inside] = big ? [at + 8, 20, 8] : [at + 2, 12, 4];
    for (let index = 0; index < count; index += 1) {
      const entry = first + index * length;
      const type = u16(entry + 2);
      const values = big ? u64(entry + 4) : u32(entry + 4);
      const size = (SIZES[type] || 1) * values;
      const place = entry + (big ? 12 : 8);
      tags.set(u16(entry), { type, values, at: size <= inside ? place : offset(place) });
    }
    return { tags, next: offset(first + count * length) };
  }
  const all = (tags, tag) => {
    const entry = tags.get(tag);
    if (!entry) return [];
    if (entry.values > 10_000_000) throw new Error("a tag is too long");
    return Array.from({ length: entry.values }, (_, index) => number(entry.type, entry.at + index * (SIZES[entry.type] || 1)));
  };
  const one = (tags, tag, otherwise) => (tags.has(tag) ? all(tags, tag)[0] : otherwise);

  const pages = [];
  let other = null;
  const seen = new Set();
  for (let at = big ? u64(8) : u32(4); at && !seen.has(at) && pages.length < FRAMES_MAX; ) {
    seen.add(at);
    // A file that is cut off has the pages before that.
    if (at >= buffer.byteLength && pages.length > 0) break;
    const { tags, next } = directory(at);
    // Thumbnails and masks are no frames, unless there is nothing else.
    const reduced = (one(tags, 254, 0) & 5) !== 0 || one(tags, 255, 0) === 2;
    if (reduced) other ??= tags;
    else pages.push(tags);
    at = next;
  }
  if (pages.length === 0 && other) pages.push(other);
  if (pages.length === 0) throw new Error("it has no pages");
  const layouts = pages.map((tags) => layout(tags, all, one));
  const [{ width, height, channels }] = layouts;
  for (const key of ["width", "height", "channels", "bits", "format"]) {
    if (layouts.some((page) => page[key] !== layouts[0][key])) throw new Error(`its pages differ in ${key}`);
  }
  const frames = imageJFrames(pages, layouts[0], buffer) || layouts.length;
  return {
    width,
    height,
    channels,
    frames,
    eight: layouts[0].bits === 8,
    orientation: (index) => (layouts[index] || layouts[0]).orientation,
    async frame(index) {
      const own = layouts[index];
      if (own) return read(buffer, own, little);
      const bytes = (width * height * channels * layouts[0].bits) / 8;
      const at = layouts[0].offsets[0] + index * bytes;
      return samples(buffer.slice(at, at + bytes), layouts[0], little);
    },
  };
}

function layout(tags, all, one) {
  const page = {
    width: one(tags, 256, 0),
    height: one(tags, 257, 0),
    bits: one(tags, 258, 1),
    format: one(tags, 339, 1),
    compression: one(tags, 259, 1),
    predictor: one(tags, 317, 1),
    channels: one(tags, 277, 1),
    inverted: one(tags, 262, 1) === 0,
    orientation: one(tags, 274, 1),
    tiled: tags.has(322),
  };
  if (page.width < 1 || page.height < 1 || page.width > SIDE_MAX || page.height > SIDE_MAX) throw new Error("its size is not supported");
  if (![1, 3, 4].includes(page.channels) || one(tags, 284, 1) !== 1 || one(tags, 262, 1) > 2) throw new Error("its colours are not supported");
  if (![8, 16, 32, 64].includes(page.bits)) throw new Error(`${page.bits} bits are not supported`);
  if (![1, 5, 8, 32946].includes(page.compression)) throw new Error(`compression ${page.compression} is not supported`);
  if (![1, 2].includes(page.predictor)) throw new Error(`predictor ${page.predictor} is not supported`);
  page.offsets = all(tags, page.tiled ? 324 : 273);
  page.counts = all(tags, page.tiled ? 325 : 279);
  page.blockWidth = page.tiled ? one(tags, 322, 0) : page.width;
  page.blockHeight = page.tiled ? one(tags, 323, 0) : Math.min(one(tags, 278, page.height), page.height);
  if (page.blockWidth < 1 || page.blockHeight < 1) throw new Error("its layout is not supported");
  return page;
}

/** How many frames ImageJ says that follow each other behind one directory. */
function imageJFrames(pages, page, buffer) {
  const entry = pages[0].get(270);
  if (pages.length > 1 || !entry || page.compression !== 1) return 0;
  const text = new TextDecoder("latin1").decode(new Uint8Array(buffer, entry.at, entry.values));
  const images = text.startsWith("ImageJ=") ? Number(text.match(/images=(\d+)/)?.[1]) : 0;
  const bytes = (page.width * page.height * page.channels * page.bits) / 8;
  return images && page.offsets[0] + images * bytes <= buffer.byteLength ? images : 0;
}

async function read(buffer, page, little) {
  const { width, height, channels, blockWidth, blockHeight } = page;
  const whole = new Float32Array(width * height * channels);
  const across = Math.ceil(width / blockWidth);
  for (const [index, at] of page.offsets.entries()) {
    const left = (index % across) * blockWidth;
    const top = Math.floor(index / across) * blockHeight;
    if (top >= height) break;
    const rows = page.tiled ? blockHeight : Math.min(blockHeight, height - top);
    const packed = buffer.slice(at, at + page.counts[index]);
    const block = samples(await unpack(packed, page, rows, little), page, little);
    const columns = Math.min(blockWidth, width - left) * channels;
    for (let row = 0; row < Math.min(rows, height - top); row += 1) {
      const from = row * blockWidth * channels;
      whole.set(block.subarray(from, from + columns), ((top + row) * width + left) * channels);
    }
  }
  return whole;
}

async function unpack(packed, page, rows, little) {
  const bytes = (page.blockWidth * rows * page.channels * page.bits) / 8;
  let plain = packed;
  if (page.compression === 5) plain = lzw(new Uint8Array(packed), bytes);
  else if (page.compression !== 1) {
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    plain = await new Response(stream).arrayBuffer();
  }
  if (page.predictor === 2) accumulate(plain, page, rows, little);
  return plain;
}

/** Undoes the differences between neighbours. */
function accumulate(plain, page, rows, little) {
  const view = new DataView(plain);
  const [size, get, set] = { 8: [1, "getUint8", "setUint8"], 16: [2, "getUint16", "setUint16"], 32: [4, "getUint32", "setUint32"] }[page.bits];
  const columns = page.blockWidth * page.channels;
  for (let row = 0; row < rows; row += 1) {
    for (let column = page.channels; column < columns; column += 1) {
      const at = (row * columns + column) * size;
      view[set](at, view[get](at, little) + view[get](at - page.channels * size, little), little);
    }
  }
}

function lzw(packed, bytes) {
  const out = new Uint8Array(bytes);
  let [table, width, at, bit, previous] = [[], 9, 0, 0, null];
  const reset = () => {
    table = Array.from({ length: 258 }, (_, index) => Uint8Array.of(index & 255));
    width = 9;
    previous = null;
  };
  reset();
  while (bit + width <= packed.length * 8 && at < bytes) {
    let code = 0;
    for (let index = 0; index < width; index += 1, bit += 1) code = (code << 1) | ((packed[bit >> 3] >> (7 - (bit & 7))) & 1);
    if (code === 257) break;
    if (code === 256) {
      reset();
      continue;
    }
    const known = table[code];
    if (!known && !previous) throw new Error("its LZW data is damaged");
    const entry = known || Uint8Array.of(...previous, previous[0]);
    out.set(entry.subarray(0, bytes - at), at);
    at += entry.length;
    if (previous) table.push(Uint8Array.of(...previous, entry[0]));
    previous = entry;
    // One code early, as TIFF's writers do.
    if (table.length >= (1 << width) - 1 && width < 12) width += 1;
  }
  return out.buffer;
}

const READERS = {
  "8,1": [1, "getUint8"], "16,1": [2, "getUint16"], "32,1": [4, "getUint32"], "8,2": [1, "getInt8"], "16,2": [2, "getInt16"],
  "32,2": [4, "getInt32"], "32,3": [4, "getFloat32"], "64,3": [8, "getFloat64"],
};

/** Samples as numbers. */
function samples(plain, page, little) {
  const reader = READERS[`${page.bits},${page.format}`];
  if (!reader) throw new Error(`samples of format ${page.format} are not supported`);
  const [size, get] = reader;
  const view = new DataView(plain);
  const numbers = new Float32Array(Math.floor(plain.byteLength / size));
  for (let index = 0; index < numbers.length; index += 1) {
    const value = view[get](index * size, little);
    numbers[index] = page.inverted ? 2 ** page.bits - 1 - value : value;
  }
  return numbers;
}
