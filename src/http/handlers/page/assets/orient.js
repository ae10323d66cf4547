// How a picture that is stored turned is turned back, as the server does it: by the number that EXIF and TIFF have for it.

const ORIENTATION = 274;
/** What a number from 2 on does to a picture of this size, as a canvas takes it; from 5 on width and height change places. */
const TURNS = {
  2: (width) => [-1, 0, 0, 1, width, 0],
  3: (width, height) => [-1, 0, 0, -1, width, height],
  4: (width, height) => [1, 0, 0, -1, 0, height],
  5: () => [0, 1, 1, 0, 0, 0],
  6: (width, height) => [0, 1, -1, 0, height, 0],
  7: (width, height) => [0, -1, -1, 0, height, width],
  8: (width) => [0, -1, 1, 0, 0, width],
};
/** A WebP of 2 × 1 pixels, which is to be turned. */
const PROBE = "UklGRk4AAABXRUJQVlA4WAoAAAAIAAAAAQAAAAAAVlA4TA4AAAAvAQAAAAcQEf0PRET/A0VYSUYaAAAATU0AKgAAAAgAAQESAAMAAAABAAYAAAAAAAAA";
let probed = null;

export const swaps = (orientation) => orientation >= 5 && orientation <= 8;

/** A picture as a person is to see it. */
export function upright(bitmap, orientation) {
  const { width, height } = bitmap;
  const turn = TURNS[orientation]?.(width, height);
  if (!turn) return bitmap;
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = swaps(orientation) ? [height, width] : [width, height];
  const context = canvas.getContext("2d");
  context.setTransform(...turn);
  context.drawImage(bitmap, 0, 0);
  return canvas;
}

/** How a WebP is still to be turned: not all browsers do that. */
export async function leftOfWebp(file) {
  const orientation = ofWebp(new DataView(await file.arrayBuffer()));
  if (orientation === 1) return 1;
  probed ??= createImageBitmap(new Blob([Uint8Array.from(atob(PROBE), (char) => char.charCodeAt(0))]));
  return (await probed).width === 1 ? 1 : orientation;
}

function ofWebp(view) {
  for (let at = 12; at + 8 <= view.byteLength; ) {
    const length = view.getUint32(at + 4, true);
    if (view.getUint32(at) === 0x45584946 && at + 8 + length <= view.byteLength) {
      return ofExif(new DataView(view.buffer, at + 8, length));
    }
    at += 8 + length + (length & 1);
  }
  return 1;
}

function ofExif(block) {
  try {
    // Some writers keep the prefix that it has in a JPEG.
    const begin = block.getUint32(0) === 0x45786966 ? 6 : 0;
    const little = block.getUint16(begin) === 0x4949;
    const directory = begin + block.getUint32(begin + 4, little);
    const entries = Array.from({ length: block.getUint16(directory, little) }, (_, index) => directory + 2 + 12 * index);
    const entry = entries.find((at) => block.getUint16(at, little) === ORIENTATION);
    if (entry === undefined) return 1;
    return block.getUint16(entry + 2, little) === 3 ? block.getUint16(entry + 8, little) : block.getUint32(entry + 8, little);
  } catch {
    // It ends too soon, and says nothing.
    return 1;
  }
}
