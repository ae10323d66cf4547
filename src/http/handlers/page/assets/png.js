// The values of a PNG that has one a pixel, as masks have: browsers paint them, and do not tell what they were.

/** Palette indices of 8 bits, or grey values of 8 or 16, row by row. */
export async function valuesOf(png) {
  const view = new DataView(png.buffer);
  const packed = [];
  let [width, height, bytes] = [0, 0, 1];
  for (let at = 8; at < png.length; at += 12 + view.getUint32(at)) {
    const name = String.fromCharCode(...png.subarray(at + 4, at + 8));
    if (name === "IHDR") [width, height, bytes] = [view.getUint32(at + 8), view.getUint32(at + 12), png[at + 16] / 8];
    if (name === "IDAT") packed.push(png.subarray(at + 8, at + 8 + view.getUint32(at)));
  }
  const stream = new Blob(packed).stream().pipeThrough(new DecompressionStream("deflate"));
  const rows = new Uint8Array(await new Response(stream).arrayBuffer());
  restore(rows, width * bytes, height, bytes);
  const values = bytes === 2 ? new Uint16Array(width * height) : new Uint8Array(width * height);
  for (let row = 0, at = 0; row < height; row += 1) {
    let from = row * (width * bytes + 1) + 1;
    for (let column = 0; column < width; column += 1, at += 1, from += bytes) {
      values[at] = bytes === 2 ? rows[from] * 256 + rows[from + 1] : rows[from];
    }
  }
  return values;
}

/** What a byte is guessed to be, by the first byte of its row; 0 is no guess. */
const GUESSES = [null, (left) => left, (left, up) => up, (left, up) => (left + up) >> 1, nearest];

/** Adds what each byte was guessed to be, from those to the left and above, in the way that its row's first byte names. */
function restore(rows, wide, height, bytes) {
  for (let row = 0; row < height; row += 1) {
    const begin = row * (wide + 1) + 1;
    const guess = GUESSES[rows[begin - 1]];
    if (!guess) continue;
    for (let at = begin; at < begin + wide; at += 1) {
      const left = at - begin < bytes ? 0 : rows[at - bytes];
      const up = row === 0 ? 0 : rows[at - wide - 1];
      const corner = row === 0 || at - begin < bytes ? 0 : rows[at - wide - 1 - bytes];
      rows[at] += guess(left, up, corner);
    }
  }
}

/** Whichever is nearest to where the slope leads. */
function nearest(left, up, corner) {
  const [a, b, c] = [Math.abs(up - corner), Math.abs(left - corner), Math.abs(left + up - 2 * corner)];
  if (a <= b && a <= c) return left;
  return b <= c ? up : corner;
}
