"""Spots in simulated movies: the kernels against a reference of their own and against the truth. Seeds are fixed."""

from dataclasses import replace
from functools import cache

import movies
import numpy as np
import pytest
import spots_reference as reference
from movies import Movie, Options
from simulate import IDEAL, Camera

SETS = movies.supported()

PHOTONS = Options(threshold_in="photons", threshold=250.0)
GRADIENT = Options(method="net_gradient", threshold_in="net_gradient", threshold=120.0)


def scmos(random, height, width, hot=0.005):
    """Maps of an sCMOS camera: read noise about 1.6 electrons, some pixels and whole columns much noisier."""
    noise = np.exp(random.normal(np.log(1.6), 0.25, (height, width)))
    noise[random.random((height, width)) < hot] = 20.0
    noise[:, :: width // 4] = 8.0
    return Camera(
        offset=random.normal(100, 2, (height, width)),
        gain=random.normal(0.46, 0.01, (height, width)),
        read_noise=noise,
    )


@pytest.mark.parametrize("maps", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("sigma", [(1.3, 1.3), (0.8, 2.1), (4.0, 0.3)])
def test_the_contrast_is_that_of_the_reference(sigma, maps):
    random = np.random.default_rng(1)
    camera = scmos(random, 61, 83) if maps else Camera(100.0, 0.5, 1.6)
    movie = movies.blinking(random, (1, 61, 83), 0.01, camera=camera)
    options = Options(sigma_px=sigma, wide=2.0 if sigma[0] < 4 else 3.0)
    plane = reference.electrons(movie)[0]
    narrow, wide = reference.both_means(plane, reference.pixel_weights(camera), options)
    for instructions in SETS:
        _, report = movies.find(movie, options, instructions)
        off = np.abs(report["contrast"][0] - (narrow - wide)).max()
        print(f"{instructions}: largest difference {off:.2g} of {np.abs(narrow - wide).max():.3g} electrons")
        # Rounding of sums in float32 of values as large as the frame's.
        assert off < 2e-6 * np.abs(plane).max()


@pytest.mark.parametrize("maps", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("options", [Options(threshold=3.0), PHOTONS, GRADIENT], ids=["noise", "photons", "gradient"])
@pytest.mark.parametrize("instructions", SETS)
def test_spots_and_scores_are_those_of_the_reference(instructions, options, maps):
    random = np.random.default_rng(2)
    shape = (3, 61, 83)
    camera = scmos(random, *shape[1:]) if maps else Camera(100.0, 0.5, 1.6)
    movie = movies.blinking(random, shape, 0.01, camera=camera)
    spots, report = movies.find(movie, options, instructions)
    assert len(spots) > 50
    worst = missing = 0
    for t, plane in enumerate(reference.electrons(movie)):
        score, plane = reference.score(plane, camera, options)
        # Float32 may decide otherwise between pixels that differ by less than it can tell.
        expected = reference.highest(plane, options.radius if options.method == "contrast" else options.side // 2)
        clearly = expected & (score > options.threshold * 1.001)
        barely = expected & (score > options.threshold * 0.999)
        here = spots[spots["frame"] == t]
        found = np.zeros(plane.shape, bool)
        found[here["y"], here["x"]] = True
        missing += (clearly & ~found).sum() + (found & ~barely).sum()
        theirs = score[here["y"], here["x"]]
        assert np.isfinite(here["score"]).all() and np.isfinite(theirs).all()
        worst = max(worst, np.abs(here["score"] / theirs - 1).max())
    print(f"{len(spots)} spots, {missing} differ, scores to {worst:.2g}")
    assert missing == 0
    assert worst < 2e-3 if options.method == "net_gradient" else worst < 2e-4
    order = np.lexsort((spots["x"], spots["y"], spots["frame"]))
    assert (order == np.arange(len(spots))).all()
    # ROIs are the frame's own values, about the maximum or moved inwards.
    for i in random.choice(len(spots), 20):
        spot, half = spots[i], options.side // 2
        x, y = int(spot["corner_x"]), int(spot["corner_y"])
        assert x == np.clip(int(spot["x"]) - half, 0, shape[2] - options.side)
        assert y == np.clip(int(spot["y"]) - half, 0, shape[1] - options.side)
        box = movie.adu[spot["frame"], y : y + options.side, x : x + options.side]
        assert (report["rois"][i] == box).all()


def test_every_instruction_set_finds_the_same():
    movie = movies.blinking(np.random.default_rng(3), (5, 128, 131), 0.01)
    for options in (Options(), PHOTONS, GRADIENT):
        found = [movies.find(movie, options, instructions)[0] for instructions in SETS]
        for other in found[1:]:
            for field in ("frame", "x", "y", "corner_x", "corner_y"):
                assert (other[field] == found[0][field]).all(), field
            assert np.allclose(other["score"], found[0]["score"], rtol=1e-4)
        again, _ = movies.find(movie, options, SETS[-1])
        assert (again == found[-1]).all()


@pytest.mark.parametrize("options", [Options(), PHOTONS, GRADIENT], ids=["noise", "photons", "gradient"])
def test_bright_spots_are_found_at_exactly_their_pixel(options):
    random = np.random.default_rng(4)
    frames, size, step = 20, 120, 12
    grid = np.arange(step // 2, size, step, dtype=float)
    x, y = (np.tile(axis.ravel(), frames) for axis in np.meshgrid(grid, grid))
    frame = np.repeat(np.arange(frames), len(grid) ** 2)
    x, y = x + random.uniform(-0.2, 0.2, len(x)), y + random.uniform(-0.2, 0.2, len(y))
    # Maxima of the frame itself are as noisy as its pixels.
    photons = 50_000.0 if options.method == "net_gradient" else 5000.0
    movie = movies.simulate(random, (frames, size, size), frame, x, y, np.full(len(x), photons))
    strict = replace(options, threshold=20.0 if options.threshold_in == "noise" else 4 * options.threshold)
    spots, _ = movies.find(movie, strict)
    true = np.column_stack([frame, np.rint(y), np.rint(x)]).astype(int)
    true = true[np.lexsort(true.T[::-1])]
    found = np.column_stack([spots["frame"], spots["y"], spots["x"]]).astype(int)
    assert len(found) == len(true)
    assert (found == true).all()


def recall_and_precision(movie, options):
    """Of detection alone."""
    spots, _ = movies.find(movie, options)
    matched = movies.match(movie, spots)
    return matched / len(movie.x), matched / len(spots)


def frames_for(per_px):
    """As many frames as it takes to know shares of their spots to a fraction of a percent, whatever the seed."""
    return max(20, round(0.4 / per_px))


@cache
def movie_and_most(per_px):
    """A movie, and the share of its spots that is found without noise."""
    movie = movies.blinking(np.random.default_rng(5), (frames_for(per_px), 128, 128), per_px)
    # Spots a few widths apart are one maximum even where there is no noise: nobody finds more by maxima.
    bare = replace(movie, adu=movie.expected.astype(np.float32))
    return movie, recall_and_precision(bare, replace(PHOTONS, threshold=100.0))[0]


@pytest.mark.parametrize("options", [Options(), PHOTONS, GRADIENT], ids=["noise", "photons", "gradient"])
@pytest.mark.parametrize("per_px", [0.001, 0.01, 0.03])
def test_detection_recalls_what_there_is_to_see(options, per_px):
    movie, most = movie_and_most(per_px)
    recall, precision = recall_and_precision(movie, options)
    print(f"{per_px} per px: {len(movie.x)} spots, recall {recall:.3f} of {most:.3f}, precision {precision:.3f}")
    # Boxes at the border are not looked at by net gradient, and its window is the box.
    least = 0.75 if options.method == "net_gradient" else 0.95
    assert recall >= least * most
    assert precision >= 0.98


@pytest.mark.parametrize("maps", [False, True], ids=["plain", "weighted"])
def test_the_unit_of_noise_is_the_standard_deviation_of_the_contrast(maps):
    random = np.random.default_rng(6)
    camera = scmos(random, 128, 128) if maps else Camera(100.0, 0.5, 1.6)
    movie = Movie(movies.expose(np.full((8, 128, 128), 10.0), camera, random), camera)
    _, report = movies.find(movie)
    planes = reference.electrons(movie)
    multiples = [report["contrast"][t] / reference.noise(planes[t], camera, Options()) for t in range(8)]
    spread = np.std(multiples)
    print(f"standard deviation of the contrast: {spread:.4f} units")
    # About 5000 neighbourhoods that do not depend on each other: known to 0.01.
    assert abs(spread - 1) < 0.03


@pytest.mark.parametrize("maps", [False, True], ids=["plain", "weighted"])
def test_the_unit_of_noise_holds_at_the_edges_and_in_the_corners(maps):
    random = np.random.default_rng(11)
    camera = scmos(random, 25, 27, hot=0.02) if maps else Camera(100.0, 0.5, 1.6)
    frames = 3000
    movie = Movie(movies.expose(np.full((frames, 25, 27), 30.0), camera, random), camera)
    # A threshold that all maxima exceed: with each comes its score, which says what its contrast was divided by.
    spots, report = movies.find(movie, Options(threshold=1e-3, radius=1))
    contrast = report["contrast"]
    unit = np.abs(contrast[spots["frame"], spots["y"], spots["x"]] / spots["score"])
    # By the background that the wide mean has there, which is about the same in all frames.
    stated, count = np.zeros((25, 27)), np.zeros((25, 27))
    np.add.at(stated, (spots["y"], spots["x"]), unit)
    np.add.at(count, (spots["y"], spots["x"]), 1)
    ratio = stated / count / contrast.std(axis=0)
    near = [np.minimum(np.arange(n), np.arange(n)[::-1]) for n in ratio.shape]
    near_y, near_x = np.meshgrid(*near, indexing="ij")
    places = {
        "corner": (near_y == 0) & (near_x == 0),
        "corner's neighbours": (near_y <= 1) & (near_x <= 1),
        "edge along x": (near_y == 0) & (near_x > 2),
        "edge along y": (near_x == 0) & (near_y > 2),
        "next to the edge": (np.minimum(near_x, near_y) == 1) & (np.maximum(near_x, near_y) > 2),
        "interior": (near_y > 8) & (near_x > 8),
    }
    # Of 3000 frames, a pixel's deviation is known to 1.3 %.
    for place, where in places.items():
        print(f"{place}: stated noise over that of {frames} frames {ratio[where].mean():.3f}")
        assert abs(ratio[where].mean() - 1) < 0.02, place
    assert np.abs(ratio - 1).max() < 0.08


@pytest.mark.parametrize("background", [0.3, 3.0, 30.0])
def test_frames_without_spots_have_few(background):
    random = np.random.default_rng(7)
    movie = Movie(random.poisson(background, (20, 256, 256)).astype(np.uint16))
    rates = {}
    for threshold in (3.5, 4.5, 5.5):
        spots, _ = movies.find(movie, Options(threshold=threshold))
        rates[threshold] = len(spots) / movie.adu.size * 1e6
    print(f"background {background}: false spots per million pixels: {rates}")
    # Photons are few and not normal where the background is faint.
    assert rates[5.5] <= (3.0 if background >= 3 else 60.0)


def test_edges_have_no_more_false_spots_than_the_middle():
    random = np.random.default_rng(12)
    movie = Movie(random.poisson(10.0, (1500, 64, 64)).astype(np.uint16))
    spots, _ = movies.find(movie, Options(threshold=4.0))
    near = np.minimum.reduce([spots["x"], 63 - spots["x"], spots["y"], 63 - spots["y"]])
    pixels = {"edge": 64**2 - 58**2, "middle": 58**2}
    found = {"edge": (near < 3).sum(), "middle": (near >= 3).sum()}
    rates = {where: found[where] / pixels[where] / 1500 * 1e6 for where in pixels}
    print(f"false spots per million pixels: {rates}, of {found}")
    # There are fewer maxima to choose from inside: an edge pixel has no neighbours on one side.
    assert rates["edge"] < 2 * rates["middle"]


def test_noisy_columns_are_no_spots_where_the_map_is_known():
    random = np.random.default_rng(8)
    camera = scmos(random, 256, 256)
    movie = Movie(movies.expose(np.full((20, 256, 256), 10.0), camera, random), camera)
    known, _ = movies.find(movie, Options(threshold=5.0))
    # The same camera as if all its pixels were alike.
    unknown, _ = movies.find(replace_camera(movie, read_noise=1.6), Options(threshold=5.0))
    rate, before = (len(spots) / movie.adu.size * 1e6 for spots in (known, unknown))
    print(f"false spots per million pixels: {rate:.2f} with the map of noise, {before:.1f} without")
    assert rate <= 5.0
    assert before > 10 * max(rate, 1.0)


def replace_camera(movie, **given):
    """The movie as if its camera were another."""
    return replace(movie, camera=replace(movie.camera, **given))


def test_spots_on_an_scmos_camera_are_recalled_as_on_an_ideal_one():
    random = np.random.default_rng(9)
    camera = scmos(random, 128, 128)
    movie = movies.blinking(random, (frames_for(0.001), 128, 128), 0.001, camera=camera)
    recall, precision = recall_and_precision(movie, Options())
    print(f"recall {recall:.3f}, precision {precision:.3f}")
    assert recall >= 0.96 and precision >= 0.98


@pytest.mark.parametrize("value", [0, 1, 65535])
@pytest.mark.parametrize("options", [Options(), PHOTONS, GRADIENT], ids=["noise", "photons", "gradient"])
def test_flat_frames_have_no_spots(options, value):
    for camera in (IDEAL, Camera(100.0, 0.5, 1.6)):
        spots, _ = movies.find(Movie(np.full((2, 40, 37), value, np.uint16), camera), options)
        assert len(spots) == 0


@pytest.mark.parametrize("options", [Options(), PHOTONS, GRADIENT], ids=["noise", "photons", "gradient"])
def test_bad_pixels_change_what_is_found_beside_them_alone(options):
    random = np.random.default_rng(10)
    movie = movies.blinking(random, (4, 128, 128), 0.002)
    good, _ = movies.find(movie, options)
    adu = movie.adu.astype(np.float32)
    bad = [(20, 30), (64, 64), (127, 0)]
    for (y, x), value in zip(bad, (np.nan, np.inf, -np.inf)):
        adu[:, y, x] = value

    def distance(spots):
        steps = [np.maximum(abs(spots["y"] - float(y)), abs(spots["x"] - float(x))) for y, x in bad]
        return np.min(steps, axis=0)

    spots, _ = movies.find(replace(movie, adu=adu), options)
    names = ["frame", "x", "y"]
    # What a pixel's own noise tips over at the threshold aside, and within the filter's reach of it.
    there, before = (set(map(tuple, some[names].tolist())) for some in (spots, good))
    far = {tuple(spot) for some in (spots, good) for spot in some[distance(some) > 11][names].tolist()}
    assert far <= there & before
    assert len(there ^ before) <= 0.01 * len(before), (there ^ before, len(before))


def test_a_frame_smaller_than_the_box_is_an_error_that_names_both():
    with pytest.raises(RuntimeError, match="frame: 37 x 6 pixels are smaller than the box of 7 x 7"):
        movies.find(Movie(np.zeros((1, 6, 37), np.uint16)))
