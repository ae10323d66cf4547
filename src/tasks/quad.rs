//! Rotated boxes: four corners in the plane.

/// Corners in order around a convex shape, each `[x, y]`.
pub type Quad = [[f32; 2]; 4];

/// The corners of a box with this centre and size, rotated by `angle` radians from x towards y (clockwise in pictures). In the unrotated
/// box their order is: right and below, left and below, left and above, right and above.
pub fn turned([x, y, width, height]: [f32; 4], angle: f32) -> Quad {
    let (sin, cos) = angle.sin_cos();
    let along = [width / 2.0 * cos, width / 2.0 * sin];
    let across = [-height / 2.0 * sin, height / 2.0 * cos];
    [[1.0, 1.0], [-1.0, 1.0], [-1.0, -1.0], [1.0, -1.0]]
        .map(|[a, b]| [x + a * along[0] + b * across[0], y + a * along[1] + b * across[1]])
}

/// The upright box around a quad: left, top, right, bottom.
pub fn hull(quad: &Quad) -> [f32; 4] {
    let least = |axis: usize| quad.iter().map(|corner| corner[axis]).fold(f32::INFINITY, f32::min);
    let most = |axis: usize| quad.iter().map(|corner| corner[axis]).fold(f32::NEG_INFINITY, f32::max);
    [least(0), least(1), most(0), most(1)]
}

/// Intersection over union; 0 when both are empty.
pub fn iou(a: &Quad, b: &Quad) -> f32 {
    let (of_a, of_b) = (area(a), area(b));
    let shared = area(&shared(a, b));
    let union = of_a + of_b - shared;
    if union > 0.0 { (shared / union) as f32 } else { 0.0 }
}

/// The area of a shape whose corners are in order, by the shoelace formula.
fn area<T: Copy + Into<f64>>(corners: &[[T; 2]]) -> f64 {
    // Relative to one of the corners: far from the origin few digits would be left.
    let Some(origin) = corners.first().map(|corner| corner.map(Into::into)) else {
        return 0.0;
    };
    let from = |corner: &[T; 2]| [corner[0].into() - origin[0], corner[1].into() - origin[1]];
    let next = corners.iter().cycle().skip(1);
    let twice: f64 = corners.iter().zip(next).map(|(a, b)| cross(from(a), from(b))).sum();
    twice.abs() / 2.0
}

fn cross(a: [f64; 2], b: [f64; 2]) -> f64 {
    a[0] * b[1] - a[1] * b[0]
}

/// The part of `a` that lies in `b`: `a` is clipped along each side of `b` in turn (Sutherland and Hodgman).
fn shared(a: &Quad, b: &Quad) -> Vec<[f64; 2]> {
    let mut shape: Vec<[f64; 2]> = a.iter().map(|corner| corner.map(f64::from)).collect();
    let sides = b.map(|corner| corner.map(f64::from));
    let middle = [0, 1].map(|axis| sides.iter().map(|corner| corner[axis]).sum::<f64>() / 4.0);
    for (begin, end) in sides.iter().zip(sides.iter().cycle().skip(1)) {
        let along = [end[0] - begin[0], end[1] - begin[1]];
        let side = |point: [f64; 2]| cross(along, [point[0] - begin[0], point[1] - begin[1]]);
        let inside = side(middle).signum();
        let beyond = |point: [f64; 2]| side(point) * inside;
        let mut cut = Vec::with_capacity(shape.len() + 1);
        for (from, to) in shape.iter().zip(shape.iter().cycle().skip(1)) {
            let (here, there) = (beyond(*from), beyond(*to));
            if here >= 0.0 {
                cut.push(*from);
            }
            if here * there < 0.0 {
                let part = here / (here - there);
                cut.push([0, 1].map(|axis| from[axis] + part * (to[axis] - from[axis])));
            }
        }
        shape = cut;
    }
    shape
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, SQRT_2};

    #[test]
    fn a_turned_box_has_its_corners_around_its_centre() {
        let upright = turned([10.0, 20.0, 8.0, 4.0], 0.0);
        assert_eq!(upright, [[14.0, 22.0], [6.0, 22.0], [6.0, 18.0], [14.0, 18.0]]);
        assert_eq!(hull(&upright), [6.0, 18.0, 14.0, 22.0]);
        let quarter = hull(&turned([10.0, 20.0, 8.0, 4.0], FRAC_PI_2));
        for (edge, expected) in quarter.into_iter().zip([8.0, 16.0, 12.0, 24.0]) {
            assert!((edge - expected).abs() < 1e-5, "{quarter:?}");
        }
    }

    #[test]
    fn overlap_of_known_boxes() {
        let square = turned([0.0, 0.0, 2.0, 2.0], 0.0);
        let third = turned([1.0, 0.0, 2.0, 2.0], 0.0);
        assert!((iou(&square, &third) - 1.0 / 3.0).abs() < 1e-6);
        // A square and the same one turned by an eighth share an octagon.
        let octagon = 8.0 * (SQRT_2 - 1.0);
        let expected = octagon / (8.0 - octagon);
        let found = iou(&square, &turned([0.0, 0.0, 2.0, 2.0], FRAC_PI_4));
        assert!((found - expected).abs() < 1e-6, "{found} {expected}");
        assert_eq!(iou(&square, &turned([5.0, 0.0, 2.0, 2.0], 1.0)), 0.0);
        let empty = turned([0.0, 0.0, 0.0, 0.0], 0.0);
        assert_eq!(iou(&empty, &empty), 0.0);
    }

    fn any_box() -> impl Strategy<Value = ([f32; 4], f32)> {
        let size = 1.0_f32..12.0;
        ((0.0_f32..10.0, 0.0_f32..10.0, size.clone(), size), -4.0_f32..4.0)
            .prop_map(|((x, y, w, h), angle)| ([x, y, w, h], angle))
    }

    fn holds(([x, y, w, h], angle): ([f32; 4], f32), point: [f32; 2]) -> bool {
        let (sin, cos) = angle.sin_cos();
        let [dx, dy] = [point[0] - x, point[1] - y];
        (dx * cos + dy * sin).abs() <= w / 2.0 && (dy * cos - dx * sin).abs() <= h / 2.0
    }

    proptest! {
        /// Compares with points of a grid, tested against each box in the box's own axes.
        #[test]
        fn overlap_is_what_points_of_a_grid_tell(a in any_box(), b in any_box()) {
            let (mut both, mut either) = (0_u32, 0_u32);
            for row in 0..240 {
                for column in 0..240 {
                    let point = [column as f32 * 0.125 - 10.0, row as f32 * 0.125 - 10.0];
                    let (in_a, in_b) = (holds(a, point), holds(b, point));
                    both += u32::from(in_a && in_b);
                    either += u32::from(in_a || in_b);
                }
            }
            let expected = both as f32 / either as f32;
            let [a, b] = [a, b].map(|(numbers, angle)| turned(numbers, angle));
            prop_assert!((iou(&a, &b) - expected).abs() < 0.06, "{} {expected}", iou(&a, &b));
            prop_assert!((iou(&a, &b) - iou(&b, &a)).abs() < 1e-5);
        }
    }
}
