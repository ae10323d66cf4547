"""The example classifier through every form in which an image can be posted."""

import pytest
import wire


def test_a_raw_body_is_classified(server, digits):
    for name, data, digit in digits:
        classes, reply = wire.one(wire.post_image(server, "digits", data), "classify")
        assert wire.best(classes) == digit, name
        assert reply["model"] == "digits" and reply["image"] == {"width": 64, "height": 64}, reply
        assert len(classes) == 3 and 0.5 < classes[0]["score"] <= 1, classes  # top_k of the manifest, after softmax
        assert classes[0]["index"] == int(digit)


def test_several_files_of_one_multipart_body_are_classified_in_order(server, digits):
    response = wire.post_files(server, "digits", [(name, data) for name, data, _ in digits])
    entries = wire.many(response, "classify", len(digits))
    assert [wire.best(e["classes"]) for e in entries] == [digit for _, _, digit in digits]


@pytest.mark.parametrize("form", wire.INSTANCE_FORMS)
def test_base64_in_json_is_classified(server, digits, form):
    response = wire.post_instances(server, "digits", [data for _, data, _ in digits], form)
    entries = wire.many(response, "classify", len(digits))
    assert [wire.best(e["classes"]) for e in entries] == [digit for _, _, digit in digits]


@pytest.mark.parametrize("form", wire.INSTANCE_FORMS)
def test_a_single_base64_image_is_classified(server, digits, form):
    _, data, digit = digits[3]
    classes = wire.single_or_only(wire.post_instances(server, "digits", [data], form), "classify")
    assert wire.best(classes) == digit


def test_a_version_can_be_named(server, digits):
    _, data, digit = digits[0]
    _, reply = wire.one(wire.post_image(server, "digits", data), "classify")
    classes, again = wire.one(wire.post_image(server, "digits", data, version=reply["version"]), "classify")
    assert wire.best(classes) == digit and again["version"] == reply["version"]


def test_the_number_of_classes_can_be_chosen(server, digits):
    for count in (1, 10):
        classes, _ = wire.one(wire.post_image(server, "digits", digits[0][1], query={"top_k": count}), "classify")
        assert len(classes) == count
    assert abs(sum(c["score"] for c in classes) - 1) < 1e-4  # all ten: softmax


def test_a_reply_carries_its_request_id_and_its_timing(server, digits):
    response = wire.post_image(server, "digits", digits[0][1])
    assert response.headers["x-request-id"]
    for stage in ("decode", "queue", "compute"):
        assert stage in response.headers["Server-Timing"], response.headers


def test_a_request_id_that_the_caller_gives_is_kept(server, digits):
    response = wire.post_image(server, "digits", digits[0][1], headers={"x-request-id": "mine-42"})
    assert response.headers["x-request-id"] == "mine-42"
