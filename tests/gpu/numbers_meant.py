"""Every number of the table: how it is written, and what exactly it is."""

SECONDS, RATE, RATIO, PLAIN, YES = "s", "/s", "%", "", "yes or no"

MEANT = {
    "load_": (SECONDS, "the driver makes this file of our kernels ready, with an empty cache: it compiles them for the GPU"),
    "again_": (SECONDS, "the same once more, in a new process, with what the driver kept"),
    "fit_apart": (PLAIN, "largest difference of any fitted value between GPU and CPU, relative to the value where that is above 1"),
    "fit_error_over_bound": (PLAIN, "root mean square of (fitted position - true position) / its standard error, 4,000 simulated spots; 1 is ideal"),
    "spots_apart": (PLAIN, "largest relative difference of a spot's score between GPU and CPU; pixels and boxes are equal"),
    "preprocess_apart": (PLAIN, "largest difference of a value between GPU and CPU, in steps of 8-bit samples"),
    "postprocess_apart": (PLAIN, "largest difference of a score or corner from plain double-precision code; classes and order are equal"),
    "math_of_tolerance": (PLAIN, "largest error of exp, ln, erf, 1/x, sqrt as a part of what is allowed"),
    "overlap_of_copy": (RATIO, "time in which a copy to the GPU and kernels on another stream both ran, over the copy's time, from events on both streams"),
    "pipeline_gain": (PLAIN, "fits per second with three batches on their way over those with one at a time, host to host"),
    "memory_back": (RATIO, "free memory after all was taken and given back, over what was free before"),
    "symbols": (PLAIN, "functions of the driver that we call and that it has"),
    "works_after_release": (YES, "whether this process can use the GPU after an illegal address, once its context was given back"),
    "works_after_reset": (YES, "the same after the context was reset"),
    "works_after_network_fault": (YES, "the same with a session of ONNX Runtime alive when it happened"),
    "network_apart": (PLAIN, "largest difference of an output between CUDA and CPU, over the largest value of that output"),
    "spots_rms_px": (PLAIN, "root mean square distance of true spots to the found ones within 1 px, along one axis; crowded ones are among them"),
    "spots_found": (RATIO, "true spots with a found one within 1 px"),
    "digits_right": (RATIO, "pictures of digits that are read rightly"),
    "boxes_found": (RATIO, "true boxes with a detection of the same label that overlaps by half or more"),
    "pixels_same": (RATIO, "pixels with the class that they have on the CPU"),
    "cosine_least": (PLAIN, "cosine of a picture's vector and the CPU's, the least of all pictures"),
    "free_to_serving_s": (SECONDS, "from the end of the other process to the GPU serving"),
    "fault_to_elsewhere_s": (SECONDS, "from the illegal address to the first answer of a request that was sent after it"),
    "fault_to_serving_s": (SECONDS, "from the illegal address to the GPU serving again"),
    "other_gpu_goes_on": (YES, "whether the second GPU answered all requests for its model after a kernel had broken the context of the first"),
    "sizes_apart": (PLAIN, "largest difference of an output of a network with recorded graphs from the CPU's, over the largest value of that output"),
    "look_of_core": (RATIO, "processor time of the thread that looks at all GPUs through NVML twice a second, over the time; meant to be below 0.5 %"),
    "answers_": (PLAIN, "requests that were answered with the right numbers, of all that were sent meanwhile; none may be missing"),
    "taken_again_": (SECONDS, "from the first request after the GPU was given back to the first answer by the GPU, the middle of three"),
    "left_bytes_": (PLAIN, "bytes of the GPU that are in use after a server with a network has given it back three times, over those before it was started"),
    "rested_bytes_": (PLAIN, "bytes of the GPU that two networks gave back when they had nothing to do for half a minute"),
    "handed_over_s": (SECONDS, "from the moment at which one of two servers no longer holds the GPU to the other serving there, the longest; two seconds of it are the calm that is waited for"),
    "kill_to_serving_s": (SECONDS, "from kill -9 of the server to its successor serving on the GPU"),
    "memory_left_bytes": (PLAIN, "bytes that the GPU had more in use after the killed server than before it was started"),
    "kernel_fits_xynb7": (RATE, "fits by the kernel alone, 7 x 7 px, x y photons background; data on the GPU, time from events, best of 7"),
    "kernel_fits_xynbs11": (RATE, "the same, 11 x 11 px with the width of the spot"),
    "host_to_host_fits": (RATE, "fits from 16-bit ROIs in pinned host memory to results in host memory, three batches of 2^20 on their way"),
    "http_fits": (RATE, "fits through HTTP, 16-bit ROIs in, Arrow out, on this machine, by as many connections as said in the log"),
    "preprocess_images": (RATE, "images of 500 x 375 RGB bytes to 3 x 224 x 224 floats by the kernel, data on the GPU, time from events"),
    "preprocess_unaligned_images": (RATE, "the same of 375 x 500, whose rows begin within words of 4 bytes"),
    "preprocess_unaligned_of_copy_bandwidth": (RATIO, "the same as below for those"),
    "copy_bytes": (RATE, "bytes that a copy of 512 MiB on the GPU reads and writes"),
    "normalize_images": (RATE, "images of 224 x 224 RGB bytes to 3 x 224 x 224 floats, not resized, in the same way"),
    "normalize_of_copy_bandwidth": (RATIO, "the same as below for those"),
    "preprocess_of_copy_bandwidth": (RATIO, "bytes of whole images and items over the kernel's time, against bytes read and written by a copy on the GPU"),
    "session_": (RATE, "images by ONNX Runtime's session in-process, batches of the size that is named, three on their way, staged from host memory"),
    "session_p50_": (SECONDS, "one image alone through the session: from host memory to results in host memory, median"),
    "session_paused_p50_": (SECONDS, "the same, each 0.3 ms after the one before: as in a server, the thread has slept"),
    "http_": (RATE, "images through HTTP, UINT8 tensors of as many images as named in one request, callers as said in the log"),
    "http_over_session_": (RATIO, "the one over the other"),
    "start_": (SECONDS, "from the start of a server with ResNet-50 in half precision to its being ready, batches of up to 64"),
    "singles_": (RATE, "images of ResNet-50 in half precision through HTTP, one in each request, put together by the server to batches of up to 64, by as many callers as named"),
    "singles_p50_": (SECONDS, "median of those requests"),
    "added_p50_": (SECONDS, "median of one request at a time less the median of the session alone"),
    "added_waiting_p50_": (SECONDS, "the same for a client that does nothing but wait: a thread that blocks on its socket"),
    "busy_": (RATIO, "mean of NVML's utilisation while saturated through HTTP: the part of the time in which any kernel ran"),
    "torch_": (RATE, "images by PyTorch in-process (torch.compile, channels last, FP16), inputs on the GPU, batches of the size that is named"),
    "pixels_apart": (PLAIN, "mean difference of pixels from the CPU's decoder, of 255, after resizing to 224 x 224; the worst of 16 pictures"),
    "jpeg_gpu": (RATE, "JPEGs of 500 x 375 to items of 224 x 224 bytes in host memory by nvJPEG and our kernel, 256 asked for at once"),
    "jpeg_cpu": (RATE, "the same by the CPU, on as many threads as said in the log"),
}


def meaning(name):
    """How it is written and what it is: by its name, or by the longest beginning of it."""
    known = [start for start in MEANT if name == start or (start.endswith("_") and name.startswith(start))]
    if not known:
        raise KeyError(f"the number {name} is explained nowhere")
    return max(known, key=len)


def written(name, value):
    """`name value unit`, as a person reads it."""
    unit = MEANT[meaning(name)][0]
    if unit == YES:
        return f"{name} {'yes' if value else 'no'}"
    if unit == RATIO:
        return f"{name} {100 * value:.1f} %"
    if unit == RATE:
        for size, letter in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
            if abs(value) >= size:
                return f"{name} {value / size:.3g}{letter}/s"
        return f"{name} {value:.3g} /s"
    if unit == SECONDS:
        return f"{name} {value * 1e6:.0f} us" if value < 1e-3 else f"{name} {value * 1e3:.1f} ms" if value < 1 else f"{name} {value:.2f} s"
    return f"{name} {value:.4g}"


def definitions(names):
    """Each once: what it is called, and what it is."""
    starts = dict.fromkeys(meaning(name) for name in names)
    return [(start + ("..." if start.endswith("_") else ""), MEANT[start][1]) for start in starts]
