//! Colors for density and for height.

use crate::words::named;

named! {
    /// Colors for a number from 0 to 1, darker to brighter.
    #[derive(Default)]
    Colormap {
        /// Black to white.
        Gray = "gray",
        /// Black over red and yellow to white, like glowing iron.
        #[default]
        Hot = "hot",
        /// Dark violet over green to yellow; perceived as even, also with color blindness.
        Viridis = "viridis",
    }
}

/// Colors of viridis at equal distances.
const VIRIDIS: [[u8; 3]; 10] = [
    [0x44, 0x01, 0x54],
    [0x48, 0x28, 0x78],
    [0x3e, 0x49, 0x89],
    [0x31, 0x68, 0x8e],
    [0x26, 0x82, 0x8e],
    [0x1f, 0x9e, 0x89],
    [0x35, 0xb7, 0x79],
    [0x6e, 0xce, 0x58],
    [0xb5, 0xde, 0x2b],
    [0xfd, 0xe7, 0x25],
];

impl Colormap {
    /// Red, green and blue for a number from 0 to 1; other numbers are clamped.
    pub fn color(self, value: f32) -> [u8; 3] {
        let value = if value > 0.0 { value.min(1.0) } else { 0.0 };
        match self {
            Colormap::Gray => [byte(value); 3],
            // Each channel reaches its maximum before the next one begins.
            Colormap::Hot => [(0.0, 3.0), (3.0, 3.0), (6.0, 2.0)]
                .map(|(before, eighths)| byte((8.0 * value - before) / eighths)),
            Colormap::Viridis => {
                let place = value * (VIRIDIS.len() - 1) as f32;
                let low = (place as usize).min(VIRIDIS.len() - 2);
                let part = place - low as f32;
                std::array::from_fn(|channel| {
                    let [from, to] = [low, low + 1].map(|at| f32::from(VIRIDIS[at][channel]));
                    byte((from + part * (to - from)) / 255.0)
                })
            }
        }
    }

    /// The palette of the colors for 0, 1/255, ... 1.
    pub(super) fn palette(self) -> Vec<u8> {
        (0..=255_u8).flat_map(|value| self.color(f32::from(value) / 255.0)).collect()
    }
}

/// The hue for a height from 0 (red) over yellow, green and cyan to 1 (azure), at a brightness from 0 to 1. Pure blue would be hard to see
/// on black.
pub(super) fn hue(height: f32, brightness: f32) -> [u8; 3] {
    // The circle of hues has six parts; three and a half of them are used.
    let place = height.clamp(0.0, 1.0) * 3.5;
    let channel = |center: f32| (2.0 - (place - center).abs()).clamp(0.0, 1.0);
    [channel(0.0), channel(2.0), channel(4.0)].map(|channel| byte(channel * brightness))
}

/// A byte for a number from 0 to 1; other numbers are clamped.
pub(super) fn byte(value: f32) -> u8 {
    (value.clamp(0.0, 1.0) * 255.0 + 0.5) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Perceived brightness, by the weights of ITU-R BT.709.
    fn luminance([red, green, blue]: [u8; 3]) -> f32 {
        0.2126 * f32::from(red) + 0.7152 * f32::from(green) + 0.0722 * f32::from(blue)
    }

    #[test]
    fn more_is_never_darker() {
        for map in Colormap::ALL {
            let palette = map.palette();
            let steps: Vec<f32> = palette.chunks(3).map(|c| luminance([c[0], c[1], c[2]])).collect();
            assert_eq!(steps.len(), 256);
            // Each channel is rounded by itself.
            assert!(steps.windows(2).all(|pair| pair[1] > pair[0] - 0.5), "{map:?}: {steps:?}");
            assert!(steps.windows(6).all(|some| some[5] > some[0]), "{map:?}: {steps:?}");
            assert!(steps[255] > steps[0] + 150.0, "{map:?}");
        }
    }

    #[test]
    fn colors_pass_their_anchors() {
        assert_eq!(Colormap::Gray.color(0.5), [128; 3]);
        assert_eq!(Colormap::Hot.color(0.375), [255, 0, 0]);
        assert_eq!(Colormap::Hot.color(0.75), [255, 255, 0]);
        assert_eq!(Colormap::Hot.color(1.0), [255; 3]);
        assert_eq!(Colormap::Viridis.color(0.0), VIRIDIS[0]);
        assert_eq!(Colormap::Viridis.color(4.0 / 9.0), VIRIDIS[4]);
        assert_eq!(Colormap::Viridis.color(2.0), VIRIDIS[9]);
        assert_eq!(Colormap::Hot.color(f32::NAN), [0; 3]);
    }

    #[test]
    fn heights_go_from_red_to_blue() {
        let hues = [
            (0.0, [255, 0, 0]),
            (1.0, [255, 255, 0]),
            (2.0, [0, 255, 0]),
            (3.0, [0, 255, 255]),
            (3.5, [0, 128, 255]),
        ];
        for (height, color) in hues {
            assert_eq!(hue(height / 3.5, 1.0), color);
            assert_eq!(hue(height / 3.5, 0.0), [0; 3]);
        }
    }
}
