// An image with what was found in it.

import { el, svg, colorOf, sure } from "./dom.js";

/** A length as a part of the whole, for a style; what lies beside the picture is put at its edge. */
const part = (value, whole) => `${(100 * Math.max(0, Math.min(whole, value))) / whole}%`;

/** A frame that holds a picture, and everything that lies on it. Small pictures keep their pixels. */
export class Picture {
  constructor(width, height, says) {
    this.width = width;
    this.height = height;
    this.canvas = el("canvas", { width, height, role: "img", "aria-label": says });
    this.over = el("div", { class: "over" });
    this.element = el("div", { class: "picture" }, this.canvas, this.over);
    this.element.style.aspectRatio = `${width} / ${height}`;
    // As wide as its column, but no higher than a screen, and a tiny one not blown up to nothing but squares.
    const scale = Math.max(1, Math.min(8, Math.floor(560 / Math.max(width, height))));
    this.element.style.maxWidth = `min(100%, ${width * scale}px, calc(70vh * ${width / height}))`;
    if (scale > 1) this.element.classList.add("pixels");
  }

  /** Shows an image in place of what was shown; none where there is none. */
  draw(bitmap) {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.width, this.height);
    if (bitmap) context.drawImage(bitmap, 0, 0, this.width, this.height);
  }

  clear() {
    this.over.replaceChildren();
  }

  /** What was found, in pixels of the picture: a box, turned if it has corners, and points `{ x, y, says }`. */
  thing({ box, corners, score, index }, label, points) {
    const tag = el("span", { class: "tag" }, el("span", { class: "name", text: label }), ` ${sure(score)}`);
    return this.put(index, corners ? this.outline(corners, tag) : this.box(box, tag), this.dots(points));
  }

  /** Points `{ x, y, says }` of all that is there. */
  points(points) {
    return this.put(0, this.dots(points));
  }

  put(index, ...parts) {
    const thing = el("div", { class: "thing" }, ...parts);
    thing.style.setProperty("--color", colorOf(index));
    this.over.append(thing);
    return thing;
  }

  dots(points) {
    return points.map(({ x, y, says }) => {
      const dot = el("span", { class: "point", title: says });
      // One beside the picture is not seen.
      dot.style.left = `${(100 * x) / this.width}%`;
      dot.style.top = `${(100 * y) / this.height}%`;
      return dot;
    });
  }

  box([left, top, right, bottom], tag) {
    const box = el("div", { class: "box" }, tag);
    box.style.left = part(left, this.width);
    box.style.top = part(top, this.height);
    box.style.width = part(right - left, this.width);
    box.style.height = part(bottom - top, this.height);
    // Above the box, or inside where there is no room.
    box.classList.toggle("inside", this.crowded(top));
    return box;
  }

  outline(corners, tag) {
    const [x, y] = corners.reduce((best, corner) => (corner[1] < best[1] ? corner : best));
    // Above the highest corner, or below it where there is no room, towards the middle.
    if (this.crowded(y)) tag.style.top = part(y, this.height);
    else tag.style.bottom = part(this.height - y, this.height);
    if (x > this.width / 2) tag.style.right = part(this.width - x, this.width);
    else tag.style.left = part(x, this.width);
    const points = corners.map((corner) => corner.join()).join(" ");
    const lines = svg("svg", { viewBox: `0 0 ${this.width} ${this.height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    lines.append(svg("polygon", { class: "edge", points }), svg("polygon", { points }));
    return el("div", { class: "outline" }, lines, tag);
  }

  crowded(top) {
    return top < this.height * 0.06;
  }

  /** A picture of the same shape on top, such as a mask. */
  layer(width, height, paint) {
    const canvas = el("canvas", { class: "layer", width, height, "aria-hidden": "true" });
    paint(canvas.getContext("2d"));
    this.over.append(canvas);
    return canvas;
  }

  /** Rings around places in pixels, where the centre of the first pixel is (0, 0). */
  rings(places, radius) {
    const scale = Math.max(1, Math.min(12, Math.round(1200 / Math.max(this.width, this.height))));
    this.layer(this.width * scale, this.height * scale, (context) => {
      context.lineWidth = Math.max(1.5, scale * 0.18);
      context.strokeStyle = "#ffb84d";
      for (const [x, y] of places) {
        context.beginPath();
        context.arc((x + 0.5) * scale, (y + 0.5) * scale, radius * scale, 0, 2 * Math.PI);
        context.stroke();
      }
    });
  }
}

/** Pixels that have a class each, in the colours of those that are `meant`. */
export function paintClasses(context, { width, height, values }, meant) {
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  // Opaque, and the lowest byte is red.
  const colors = new Map([...meant].map((index) => [index, 0xff000000 + parseInt(colorOf(index).slice(1).replace(/(..)(..)(..)/, "$3$2$1"), 16)]));
  for (let at = 0; at < pixels.length; at += 1) pixels[at] = colors.get(values[at]) ?? 0;
  context.putImageData(image, 0, 0);
}

/** Pixels as run lengths (column by column, beginning outside), in the colours of their classes, the last on top. */
export function paintRuns(context, { width, height }, runs) {
  const image = context.createImageData(width, height);
  for (const { index, counts } of runs) {
    const color = parseInt(colorOf(index).slice(1), 16);
    let at = 0;
    counts.forEach((count, run) => {
      const end = at + count;
      // What lies between is passed over as a whole: of many classes it would be gone through for each.
      if (run % 2 === 0) at = end;
      for (; at < end; at += 1) {
        const pixel = ((at % height) * width + Math.floor(at / height)) * 4;
        image.data[pixel] = color >> 16;
        image.data[pixel + 1] = (color >> 8) & 255;
        image.data[pixel + 2] = color & 255;
        image.data[pixel + 3] = 255;
      }
    });
  }
  context.putImageData(image, 0, 0);
}
