//! Chooses the form of a prediction's reply: the one that `Accept` prefers among ours.

use super::asked::{PictureForm, torchserve_has};
use crate::{
    http::{
        accepted::{self, Offer},
        streamed::Form,
    },
    tasks::Task,
};
use axum::http::HeaderMap;

/// A form of the reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Json,
    /// Asked for by `Accept: application/json; format=torchserve`, for clients that cannot change an address.
    TorchServe,
    /// A mask or a picture as a file of its own.
    Picture(PictureForm),
    Streamed(Form),
}

/// The preferred form of the reply, if any is accepted. It can depend on the number of images, which is known only when the body is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Negotiated {
    /// If a picture can be the reply.
    pub(super) pictured: Option<Reply>,
    /// If there are several images, which of these files only a TIFF has pages for.
    pub(super) otherwise: Option<Reply>,
}

impl Negotiated {
    pub(in crate::http) fn of(headers: &HeaderMap, task: &Task) -> Negotiated {
        let torchserve = Offer {
            form: Reply::TorchServe,
            media: "application/json",
            parameter: Some(("format", Some("torchserve"))),
            by_range: false,
        };
        let mut offers = Vec::with_capacity(7);
        // Before JSON, which matches any parameters.
        offers.extend(torchserve_has(task).then_some(torchserve));
        offers.push(Offer::ranged(Reply::Json, "application/json"));
        offers.extend(Form::offers(Reply::Streamed));
        let pictures = PictureForm::of(task).iter();
        offers.extend(pictures.map(|form| Offer::ranged(Reply::Picture(*form), form.media())));
        let pictured = accepted::best(headers, &offers);
        offers.retain(|offer| offer.form != Reply::Picture(PictureForm::Png));
        Negotiated { pictured, otherwise: accepted::best(headers, &offers) }
    }

    /// Whether TorchServe's form is preferred, which is the form of requests that ask for none if `by_default`.
    pub(in crate::http) fn torchserve(self, by_default: bool) -> bool {
        match self.otherwise {
            Some(Reply::TorchServe) => true,
            Some(Reply::Streamed(_)) => false,
            _ => by_default,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tasks::{Classify, Image, Segment};
    use axum::http::{HeaderValue, header};

    const JSON: Option<Reply> = Some(Reply::Json);
    const PNG: Option<Reply> = Some(Reply::Picture(PictureForm::Png));
    const TIFF: Option<Reply> = Some(Reply::Picture(PictureForm::Tiff));
    const TORCHSERVE: Option<Reply> = Some(Reply::TorchServe);
    const LINES: Option<Reply> = Some(Reply::Streamed(Form::Lines));
    const EVENTS: Option<Reply> = Some(Reply::Streamed(Form::Events));

    fn negotiated(accept: &'static str, task: &Task) -> Negotiated {
        Negotiated::of(&HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]), task)
    }

    #[test]
    fn a_segmenter_answers_the_best_liked_form_that_its_reply_has() {
        let task = Task::Segment(Segment::default());
        for (accept, pictured, otherwise) in [
            ("*/*", JSON, JSON),
            ("application/json", JSON, JSON),
            ("image/png", PNG, None),
            ("Image/PNG; Q=0.3", PNG, None),
            ("image/*", PNG, TIFF),
            ("image/png, */*", PNG, JSON),
            ("*/*, image/png", PNG, JSON),
            ("image/*, */*", PNG, TIFF),
            ("image/*, application/json", JSON, JSON),
            ("image/png, application/json", PNG, JSON),
            ("application/json, image/png", JSON, JSON),
            ("image/png;q=0.5, application/json", JSON, JSON),
            ("image/png;q=0.1, */*", JSON, JSON),
            ("application/json;q=0.1, */*", PNG, TIFF),
            ("application/json;q=0, */*", PNG, TIFF),
            ("image/png;q=0, image/*", TIFF, TIFF),
            ("image/png;q=0, */*", JSON, JSON),
            ("image/webp, image/png", PNG, None),
            ("image/avif,image/webp,image/png,*/*;q=0.8", PNG, JSON),
            ("image/avif,image/webp,image/apng,image/svg+xml,image/*,*/*;q=0.8", PNG, TIFF),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", JSON, JSON),
            ("image/*, application/json;q=0.5", PNG, TIFF),
            ("image/png;q=0.9, text/html", PNG, None),
            ("image/png, application/x-ndjson", PNG, LINES),
            ("application/x-ndjson, image/png", LINES, LINES),
            ("application/x-ndjson;q=0.5, image/png", PNG, LINES),
            ("image/png;q=0.5, text/event-stream", EVENTS, EVENTS),
            ("application/json;format=torchserve", JSON, JSON),
            ("text/html", None, None),
            ("", None, None),
        ] {
            assert_eq!(negotiated(accept, &task), Negotiated { pictured, otherwise }, "{accept}");
        }
        let none = Negotiated { pictured: None, otherwise: None };
        assert_eq!(Negotiated::of(&HeaderMap::new(), &task), none);
    }

    #[test]
    fn a_picture_is_answered_as_a_png_or_as_the_values_that_it_has() {
        let task = Task::Image(Image::default());
        for (accept, pictured, otherwise) in [
            ("*/*", JSON, JSON),
            ("image/png", PNG, None),
            ("image/tiff", TIFF, TIFF),
            ("image/*", PNG, TIFF),
            ("image/tiff, image/png;q=0.9", TIFF, TIFF),
            ("image/png, image/tiff", PNG, TIFF),
            ("image/png, image/tiff;q=0.5, application/json;q=0.1", PNG, TIFF),
            ("image/png, application/json, image/tiff;q=0.5", PNG, JSON),
            ("image/png;q=0.1, image/*", TIFF, TIFF),
            ("image/tiff, application/json;q=0.5", TIFF, TIFF),
            ("application/json, image/tiff", JSON, JSON),
            ("image/tiff, application/x-ndjson", TIFF, TIFF),
            ("image/tiff;q=0.5, application/x-ndjson", LINES, LINES),
            ("image/webp", None, None),
        ] {
            for task in [&task, &Task::Segment(Segment::default())] {
                assert_eq!(negotiated(accept, task), Negotiated { pictured, otherwise }, "{accept}");
            }
        }
    }

    #[test]
    fn a_classifier_answers_the_best_liked_form_that_its_reply_has() {
        let task = Task::Classify(Classify::default());
        for (accept, expected) in [
            ("*/*", JSON),
            ("image/png", None),
            ("image/png, */*;q=0.1", JSON),
            ("application/json, */*", JSON),
            ("application/json; charset=utf-8", JSON),
            ("application/json;format=torchserve", TORCHSERVE),
            ("application/json;format=\"torchserve\"", TORCHSERVE),
            ("application/json; Format=\"TorchServe\"; q=0.5, */*;q=0.1", TORCHSERVE),
            ("application/json;format=\"torchserve", JSON),
            ("application/json;format=\"\"", JSON),
            ("text/html, application/json; q=0.9; format=torchserve", TORCHSERVE),
            ("application/json, application/json;format=torchserve", TORCHSERVE),
            ("application/json, application/json;format=torchserve;q=0.1", JSON),
            ("application/json;q=0.1, application/json;format=torchserve;q=0.2", TORCHSERVE),
            ("application/json;format=torchserve;q=0, */*", JSON),
            ("application/json;format=torchserve, application/x-ndjson", TORCHSERVE),
            ("application/json;format=torchserve;q=0.5, application/x-ndjson", LINES),
            ("text/plain; format=torchserve", None),
            ("application/json; format=ocelli", JSON),
            ("application/x-ndjson, text/event-stream", LINES),
            ("*/*, text/event-stream", EVENTS),
        ] {
            let expected = Negotiated { pictured: expected, otherwise: expected };
            assert_eq!(negotiated(accept, &task), expected, "{accept}");
        }
    }
}
