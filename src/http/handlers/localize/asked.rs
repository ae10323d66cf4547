//! What a request for localizations asks for: changes to the model's settings, how to read the body, and the form of the reply.

use crate::{
    error::InferError,
    http::{
        accepted::{self, Offer},
        query,
    },
    image::stack::{Format as StackFormat, Raw, Received, SampleType},
    tasks::localize::{
        Format, Holds, Options, Settings, Words,
        options::{self, word},
        settings::{self, KEYS},
    },
    words::clipped,
};
use axum::http::{HeaderMap, header};

/// Keys of the query beside those of [`Options`] and of [`Settings`].
const OWN_KEYS: [&str; 6] = ["input", "planes", "first_frame", "dtype", "shape", "format"];

/// What is accepted, for messages.
const ACCEPTED: &str = "application/x-ndjson, text/csv, text/csv; profile=thunderstorm, application/zip (Picasso), \
                        application/x-hdf5, application/vnd.apache.arrow.stream, application/x-npy or image/png, or say \
                        format=... in the query";

/// What a request asks for.
#[derive(Debug)]
pub(super) struct Asked {
    /// The model's, with the request's changes.
    pub(super) settings: Settings,
    /// What the frames of the stack are.
    pub(super) holds: Holds,
    /// Whether planes in other files, which the posted file names, are left to other requests.
    pub(super) file_alone: bool,
    /// The number of the first frame.
    pub(super) first_frame: u32,
    /// How the body is stored; `None`: its first bytes tell.
    pub(super) stack: Option<StackFormat>,
    /// The count of the body's bytes as they arrive, if the body is compressed.
    pub(super) came: Option<Received>,
    /// The form of the reply.
    pub(super) format: Format,
    /// Details of that form.
    pub(super) options: Options,
}

impl Asked {
    /// From the query and the headers.
    pub(super) fn of(query: &str, headers: &HeaderMap, settings: Settings) -> Result<Asked, InferError> {
        Asked::read(query, headers, settings).map_err(|wrong| match wrong {
            Wrong::Query(why) => InferError::BadRequest(why),
            Wrong::Accept(got) => InferError::NotAcceptable { got, accepted: ACCEPTED },
        })
    }

    fn read(query: &str, headers: &HeaderMap, mut settings: Settings) -> Result<Asked, Wrong> {
        let (mut holds, mut format, mut options) = (Holds::Auto, None, Options::default());
        let (mut file_alone, mut first_frame) = (false, None);
        let (mut dtype, mut shape) = (None, None);
        let mut pairs = query::pairs(query)?;
        // `z_range_um` adds to `color_by`, which must be set before it.
        pairs.sort_by_key(|(key, _)| key == "z_range_um");
        settings::agree(&pairs).map_err(|(_, why)| why)?;
        for (key, value) in &pairs {
            let value = value.as_ref();
            match key.as_ref() {
                "input" => holds = Holds::read("input", value)?,
                "planes" => file_alone = word("planes", value, is_here, "all or here")?,
                "first_frame" => first_frame = Some(whole("first_frame", value)?),
                "dtype" => dtype = Some(sample_type(value)?),
                "shape" => shape = Some(value.to_owned()),
                "format" => {
                    let names = Format::ALL.map(Format::name).join(", ");
                    format = Some(word("format", value, Format::from_name, &names)?);
                }
                key if options::KEYS.contains(&key) => options.set(key, value)?,
                key if KEYS.iter().any(|(_, known)| *known == key) => settings.set(key, value)?,
                key => {
                    let known = OWN_KEYS.into_iter().chain(options::KEYS).chain(KEYS.map(|(_, key)| key));
                    return Err(query::unknown(key, known).into());
                }
            }
        }
        settings.heeds(&pairs)?;
        let format = match format {
            Some(format) => format,
            None => self::format(headers)?,
        };
        options::agree(&pairs, format)?;
        if first_frame.is_some() && format == Format::Png {
            return Err("first_frame numbers rows, but the format is png, which has none: leave it out"
                .to_owned()
                .into());
        }
        // A preset selects among our own columns. Formats with fixed columns ignore the model's preset, but not the request's.
        if format.has_open_columns() || pairs.iter().any(|(key, _)| key == "preset") {
            options.columns = settings.columns();
        }
        let stack = raw(headers, dtype, shape.as_deref())?;
        let first_frame = first_frame.unwrap_or(0);
        Ok(Asked { settings, holds, file_alone, first_frame, stack, came: None, format, options })
    }
}

/// Why a request cannot be read.
enum Wrong {
    Query(String),
    Accept(String),
}

impl From<String> for Wrong {
    fn from(why: String) -> Wrong {
        Wrong::Query(why)
    }
}

/// Whether only the file's own planes are meant.
fn is_here(planes: &str) -> Option<bool> {
    match planes {
        "all" => Some(false),
        "here" => Some(true),
        _ => None,
    }
}

fn whole(key: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|_| format!("{key} is {value:?}, expected a whole number from 0 to {}", u32::MAX))
}

fn sample_type(value: &str) -> Result<SampleType, String> {
    match value {
        "u16" | "uint16" => Ok(SampleType::U16),
        "f32" | "float32" => Ok(SampleType::F32),
        "u8" | "uint8" => Ok(SampleType::U8),
        _ => Err(format!("dtype is {value:?}, expected u16, f32 or u8")),
    }
}

/// The layout of raw little-endian samples, from `dtype` and `shape` of the query or the headers `Ocelli-Dtype` and `Ocelli-Shape`. With
/// neither, the body itself tells what it is.
fn raw(
    headers: &HeaderMap,
    dtype: Option<SampleType>,
    shape: Option<&str>,
) -> Result<Option<StackFormat>, String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let dtype_of_header = header("ocelli-dtype").map(sample_type).transpose()?;
    let shape_of_header = header("ocelli-shape");
    if dtype.zip(dtype_of_header).is_some_and(|(query, header)| query != header) {
        return Err("the query and Ocelli-Dtype give different types: leave one out".into());
    }
    if let Some((query, header)) = shape.zip(shape_of_header).filter(|(query, header)| query != header) {
        return Err(format!("the query has shape {query:?} and Ocelli-Shape {header:?}: leave one out"));
    }
    let (sample, shape) = match (dtype.or(dtype_of_header), shape.or(shape_of_header)) {
        (None, None) => return Ok(None),
        (Some(_), None) => {
            return Err("dtype needs shape as well: frames,height,width or height,width".into());
        }
        (dtype, Some(shape)) => (dtype.unwrap_or(SampleType::U16), shape),
    };
    let wrong = || format!("shape is {shape:?}, expected frames,height,width or height,width");
    let extents: Option<Vec<u64>> = shape.split(',').map(|extent| extent.trim().parse().ok()).collect();
    let (frames, height, width) = match extents.as_deref() {
        Some([height, width]) => (None, *height, *width),
        Some([frames, height, width]) => (Some(*frames), *height, *width),
        _ => return Err(wrong()),
    };
    let side = |side: u64| u32::try_from(side).ok().filter(|side| *side > 0).ok_or_else(wrong);
    Ok(Some(StackFormat::Raw(Raw { width: side(width)?, height: side(height)?, sample, frames })))
}

/// Which media types ask for which format. A range gets the first offer that it covers.
const OFFERS: [Offer<Format>; 11] = [
    Offer::ranged(Format::Ndjson, "application/x-ndjson"),
    Offer::named(Format::Ndjson, "application/ndjson"),
    Offer::named(Format::Ndjson, "application/jsonl"),
    Offer {
        parameter: Some(("profile", Some("thunderstorm"))),
        ..Offer::named(Format::ThunderStorm, "text/csv")
    },
    // Any other profile is not one of ours.
    Offer { parameter: Some(("profile", None)), ..Offer::ranged(Format::Csv, "text/csv") },
    Offer::ranged(Format::Png, "image/png"),
    Offer::ranged(Format::Arrow, "application/vnd.apache.arrow.stream"),
    Offer::ranged(Format::Hdf5, "application/x-hdf5"),
    Offer::named(Format::Hdf5, "application/x-hdf"),
    Offer::ranged(Format::Npy, "application/x-npy"),
    Offer::ranged(Format::Picasso, "application/zip"),
];

/// The format that `Accept` prefers among ours.
fn format(headers: &HeaderMap) -> Result<Format, Wrong> {
    if !headers.contains_key(header::ACCEPT) {
        return Ok(Format::Ndjson);
    }
    accepted::best(headers, &OFFERS)
        .ok_or_else(|| Wrong::Accept(clipped(&accepted::joined(headers, header::ACCEPT)).to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::localize::Columns;
    use axum::http::HeaderValue;

    fn asked(query: &str, accept: impl IntoIterator<Item = &'static str>) -> Result<Asked, String> {
        let mut headers = HeaderMap::new();
        for line in accept {
            headers.append(header::ACCEPT, HeaderValue::from_static(line));
        }
        Asked::of(query, &headers, Settings::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_form_of_the_reply_is_the_querys_or_what_is_accepted() {
        let format = |query, accept| asked(query, accept).map(|asked| asked.format);
        assert_eq!(format("", None), Ok(Format::Ndjson));
        assert_eq!(format("", Some("*/*")), Ok(Format::Ndjson));
        assert_eq!(format("", Some("image/png, */*")), Ok(Format::Png));
        assert_eq!(format("", Some("text/*, */*;q=0.1")), Ok(Format::Csv));
        assert_eq!(format("", Some("image/avif, image/*;q=0.8")), Ok(Format::Png));
        assert_eq!(format("", Some("video/*, application/*;q=0.8")), Ok(Format::Ndjson));
        assert_eq!(format("format=csv", Some("image/png")), Ok(Format::Csv));
        assert_eq!(format("", Some("text/csv;q=0.5, image/png")), Ok(Format::Png));
        assert_eq!(format("", Some("text/csv;q=0, */*;q=0.1")), Ok(Format::Ndjson));
        assert_eq!(format("", Some("application/x-ndjson;q=0, */*")), Ok(Format::Csv));
        assert!(format("", Some("text/csv; profile=rfc7111")).is_err());
        for format in Format::ALL {
            assert_eq!(asked("", Some(format.media_type())).map(|asked| asked.format), Ok(format));
        }
        let lines = |lines: [&'static str; 2]| asked("", lines).map(|asked| asked.format);
        assert_eq!(lines(["text/html", "text/csv; profile=thunderstorm"]), Ok(Format::ThunderStorm));
        let error = lines(["text/html", "text/csv;q=0"]).unwrap_err();
        assert!(error.contains("\"text/html, text/csv;q=0\""), "{error}");
        let error = format("", Some("text/html")).unwrap_err();
        assert!(error.contains("\"text/html\"") && error.contains("application/x-ndjson"), "{error}");
    }

    #[test]
    fn settings_are_changed_by_the_query() {
        let mut changed = Settings::default();
        changed.set("psf", "xynbs").unwrap();
        changed.set("sigma_px", "1.4").unwrap();
        assert_eq!(asked("psf=xynbs&sigma_px=1.4", None).unwrap().settings, changed);
    }

    #[test]
    fn what_a_request_says_of_spots_takes_the_place_of_the_manifest_s_in_any_order() {
        let mut manifest = Settings::default();
        manifest.set("method", "net-gradient").unwrap();
        manifest.set("gradient_min", "300").unwrap();
        let asked = |query| Asked::of(query, &HeaderMap::new(), manifest.clone()).unwrap().settings;
        // What was said is remembered as well.
        let said = |settings: &Settings, query| {
            let mut settings = settings.clone();
            settings.heeds(&query::pairs(query).unwrap()).unwrap();
            settings
        };
        let mut noise = manifest.clone();
        noise.set("noise_min", "3").unwrap();
        for query in ["noise_min=3", "noise_min=3&method=contrast", "method=contrast&noise_min=3"] {
            assert_eq!(asked(query), said(&noise, query), "{query}");
        }
        assert_eq!(asked("method=net-gradient"), said(&manifest, "method=net-gradient"));
        let mut gradient = noise.clone();
        gradient.set("gradient_min", "20").unwrap();
        for query in ["gradient_min=20&method=net-gradient", "method=net-gradient&gradient_min=20"] {
            assert_eq!(asked(query), said(&gradient, query), "{query}");
        }
    }

    #[test]
    fn what_has_no_effect_beside_something_else_is_refused_by_its_key() {
        let told = |query| asked(query, None).expect_err(query);
        assert!(told("scale=2&scale_nm=20").contains("scale_nm is given beside scale"));
        assert!(told("render=histogram&error_px_max=0.5").contains("error_px_max is of render=blur"));
        assert!(told("colormap=viridis&color_by=z").contains("colormap is of color_by=density"));
        let mut manifest = Settings::default();
        manifest.set("gradient_min", "300").unwrap();
        let of =
            |query| Asked::of(query, &HeaderMap::new(), manifest.clone()).map_err(|error| error.to_string());
        assert!(of("border=shift").unwrap_err().contains("border is shift, but the method is net-gradient"));
        assert!(told("method=net-gradient&border=shift").contains("border is shift"));
        for query in ["radius_px=3", "radius_px=3&gradient_min=200"] {
            let error = of(query).unwrap_err();
            assert!(
                error.contains("radius_px is of the method contrast, but the method is net-gradient"),
                "{error}"
            );
        }
        assert!(told("radius_px=3&method=net-gradient").contains("radius_px is of the method contrast"));
        let of_z = "gamma_um is of the psf xyznb, but the psf is xynbs";
        assert!(
            told("psf=xynbs&gamma_um=0.3").contains(of_z) && told("gamma_um=0.3&psf=xynbs").contains(of_z)
        );
        assert!(told("psf=xynbs&sigma_px=1.3,1.4").contains("the fit of psf=xynbs starts from one width"));
        assert!(asked("psf=xynbsxsy&sigma_px=1.3,1.4", None).is_ok());
        assert!(asked("gamma_um=0.3&psf=xyznb", None).is_ok());
        for query in [
            "border=drop",
            "method=contrast&border=shift",
            "border=shift&noise_min=3",
            "radius_px=3&noise_min=3",
        ] {
            assert!(of(query).is_ok(), "{query}");
        }
    }

    #[test]
    fn what_is_of_pictures_is_refused_beside_another_format_by_its_key() {
        for key in options::KEYS.into_iter().filter(|key| !["units", "keep", "p_min"].contains(key)) {
            let value = match key {
                "render" => "blur",
                "colormap" => "gray",
                "color_by" => "z",
                "z_range_um" => "0,1&color_by=z",
                _ => "1",
            };
            let is_refused = |query: String, accept, format: &str| {
                let told = asked(&query, accept).expect_err(&query);
                assert!(
                    told.contains("is of pictures, but the format is") && told.contains(format),
                    "{told}"
                );
                assert!(query.contains(told.split(' ').next().expect("a key")), "{query}: {told}");
            };
            is_refused(format!("{key}={value}"), None, "ndjson");
            is_refused(format!("{key}={value}"), Some("text/csv"), "csv");
            is_refused(format!("format=picasso&{key}={value}"), Some("image/png"), "picasso");
            for (query, accept) in [("&format=png", None), ("", Some("image/png"))] {
                assert!(asked(&format!("{key}={value}{query}"), accept).is_ok(), "{key}");
            }
        }
    }

    #[test]
    fn a_preset_is_the_models_where_a_format_has_columns_of_its_own_and_not_the_requests() {
        let mut manifest = Settings::default();
        manifest.set("preset", "gaussmle").unwrap();
        let columns = |query, settings: &Settings| {
            Asked::of(query, &HeaderMap::new(), settings.clone()).unwrap().options.columns
        };
        assert_eq!(columns("format=picasso", &manifest), Columns::All);
        assert_eq!(columns("format=csv", &manifest), Columns::GaussMle);
        // The writer refuses this combination.
        assert_eq!(columns("format=picasso&preset=gaussmle", &Settings::default()), Columns::GaussMle);
        assert_eq!(columns("format=picasso&preset=none", &manifest), Columns::All);
    }

    #[test]
    fn raw_samples_need_a_shape() {
        let raw = |query| asked(query, None).map(|asked| asked.stack);
        let sample = SampleType::U16;
        assert_eq!(raw(""), Ok(None));
        assert_eq!(
            raw("dtype=u16&shape=10,7,8"),
            Ok(Some(StackFormat::Raw(Raw { width: 8, height: 7, sample, frames: Some(10) })))
        );
        assert_eq!(
            raw("shape=7,7"),
            Ok(Some(StackFormat::Raw(Raw { width: 7, height: 7, sample, frames: None })))
        );
        assert!(raw("dtype=f32").unwrap_err().contains("shape"));
        assert!(raw("shape=7").unwrap_err().contains("frames,height,width"));
        let said = |header: [&'static str; 2]| {
            let headers = HeaderMap::from_iter([(
                http::HeaderName::from_static(header[0]),
                HeaderValue::from_static(header[1]),
            )]);
            super::raw(&headers, Some(SampleType::U16), Some("7,7"))
        };
        assert!(said(["ocelli-shape", "7,8"]).unwrap_err().contains("and Ocelli-Shape \"7,8\""));
        assert!(said(["ocelli-dtype", "u8"]).unwrap_err().contains("Ocelli-Dtype give different types"));
        assert_eq!(said(["ocelli-dtype", "uint16"]), raw("dtype=u16&shape=7,7"));
    }

    #[test]
    fn mistakes_name_their_key_and_what_is_allowed() {
        for (query, expected) in [
            ("psf=gauss", "psf is \"gauss\", expected xynb, xynbs"),
            ("planes=mine", "planes is \"mine\", expected all or here"),
            ("first_frame=-1", "first_frame is \"-1\", expected a whole number from 0 to 4294967295"),
            ("first_frame=10&format=png", "first_frame numbers rows, but the format is png"),
            ("format=xml", "format is \"xml\", expected csv"),
            ("gian=1.3", "unknown key \"gian\" in the query; there are input"),
            ("gian=1.3", "spots_max; nearest: gain"),
            ("psf", "write psf=..."),
            ("keep=all&keep=finite", "keep is given twice"),
            ("z_range_um=-0.5,0.5", "needs color_by=z"),
            ("z_range_um=1,0&color_by=z", "the lower and the upper end"),
            ("photons_min=200&noise_min=3", "noise_min is given beside photons_min"),
            ("gradient_min=400&photons_min=200", "gradient_min is given beside photons_min"),
            (
                "method=contrast&gradient_min=400",
                "gradient_min is of the method net-gradient, but method is \"contrast\"",
            ),
            ("noise_min=5&method=net-gradient", "noise_min is of the method contrast"),
            (
                "method=Net-Gradient&gradient_min=300",
                "method is \"Net-Gradient\", expected contrast or net-gradient",
            ),
        ] {
            let error = asked(query, None).unwrap_err();
            assert!(error.contains(expected), "{query}: {error}");
        }
        let all = OWN_KEYS
            .iter()
            .chain(&options::KEYS)
            .all(|key| !asked(&format!("{key}=?"), None).unwrap_err().contains("unknown key"));
        assert!(all, "every key of the list is known");
    }
}
