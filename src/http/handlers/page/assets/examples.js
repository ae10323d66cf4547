// Something to try at once: pictures that come with the server, and a movie of blinking molecules that is made here.

import { address, ask } from "./api.js";

const PICTURES = [
  { path: "page/digit-3.png", name: "three.png", says: "a handwritten three", task: "classify", shows: "Label" },
  { path: "page/digit-7.png", name: "seven.png", says: "a handwritten seven", task: "classify", shows: "Label" },
  { path: "page/digits-1.png", name: "digits.png", says: "several digits", task: "detect", shows: "Boxes" },
  { path: "page/digits-3.png", name: "more-digits.png", says: "several digits", task: "detect", shows: "Boxes" },
  { path: "page/digits-1.png", name: "parts.png", says: "several digits", task: "segment", shows: "Mask" },
  { path: "page/digit-7.png", name: "other.png", says: "a handwritten seven", task: "image", shows: "Picture" },
  { path: "page/digit-3.png", name: "alike.png", says: "a handwritten three", task: "embed", shows: "Vector" },
];

/** All of them: `{ name, says, task, shows, thumbnail, file() }`, where `shows` is what comes of it, in a word. */
export function examples() {
  const pictures = PICTURES.map(({ path, ...rest }) => ({
    ...rest,
    thumbnail: address(path).href,
    file: async () => new File([await (await ask(address(path))).blob()], rest.name, { type: "image/png" }),
  }));
  const movie = { name: "movie.npy", says: "a simulated movie of blinking molecules", task: "localize", shows: "Spots", thumbnail: null };
  return [...pictures, { ...movie, file: async () => new File([simulate()], movie.name) }];
}

const FRAMES = 160;
const SIDE = 64;
const SIGMA = 1.3;
const PHOTONS = 1500;
const BACKGROUND = 6;
// As the example model has its camera: photo-electrons = (value - 100) * 0.5.
const OFFSET = 100;
const GAIN = 0.5;
const MOLECULES = 2400;
/** How far from its ring a molecule may be, in pixels. */
const SPREAD = 0.35;
/** Three eyes, each two rings: centre and radius in pixels. */
const RINGS = [[32, 19, 12], [32, 19, 5], [18, 44, 12], [18, 44, 5], [46, 44, 12], [46, 44, 5]];

/** A movie as numpy keeps it, the same each time. */
function simulate() {
  const random = generator(20261122);
  const normal = () => Math.sqrt(-2 * Math.log(1 - random())) * Math.cos(2 * Math.PI * random());
  const expected = new Float32Array(FRAMES * SIDE * SIDE).fill(BACKGROUND);
  const whole = RINGS.reduce((sum, [, , radius]) => sum + radius, 0);
  for (let molecule = 0; molecule < MOLECULES; molecule += 1) {
    let along = random() * whole;
    const [cx, cy, radius] = RINGS.find((ring) => (along -= ring[2]) < 0) || RINGS[0];
    const angle = 2 * Math.PI * random();
    const from = radius + SPREAD * normal();
    const x = cx + from * Math.cos(angle);
    const y = cy + from * Math.sin(angle);
    shine(expected, Math.floor(random() * FRAMES), x, y, PHOTONS * (0.4 + 1.2 * random()));
  }
  const counts = new Uint16Array(expected.length);
  for (let index = 0; index < counts.length; index += 1) {
    // Enough photons for a normal distribution to stand for Poisson's; and the camera's own noise.
    const photons = Math.max(0, expected[index] + Math.sqrt(expected[index] + 1) * normal());
    counts[index] = Math.min(65_535, Math.round(OFFSET + photons / GAIN));
  }
  const head = `{'descr': '<u2', 'fortran_order': False, 'shape': (${FRAMES}, ${SIDE}, ${SIDE}), }`;
  const text = `${head.padEnd(117)}\n`;
  return new Blob([new Uint8Array([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, text.length, 0]), text, counts]);
}

/** Adds a spot to a frame. */
function shine(expected, frame, x, y, photons) {
  const reach = Math.ceil(4 * SIGMA);
  const peak = photons / (2 * Math.PI * SIGMA * SIGMA);
  for (let row = Math.max(0, Math.floor(y) - reach); row < Math.min(SIDE, Math.floor(y) + reach); row += 1) {
    for (let column = Math.max(0, Math.floor(x) - reach); column < Math.min(SIDE, Math.floor(x) + reach); column += 1) {
      const square = (column - x) ** 2 + (row - y) ** 2;
      expected[(frame * SIDE + row) * SIDE + column] += peak * Math.exp(-square / (2 * SIGMA * SIGMA));
    }
  }
}

/** Numbers from 0 to 1 that look random, from a seed (xorshift). */
function generator(seed) {
  let state = seed;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}
