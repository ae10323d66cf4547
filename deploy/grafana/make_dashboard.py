#!/usr/bin/env python3
"""Writes the dashboard, `ocelli.json` beside this file. A test holds the two equal.

    python3 deploy/grafana/make_dashboard.py

The form is Grafana's classic one (10 and newer). The data source is a variable, so that the file works by provisioning and by
import. Rows go from what callers see to what the process needs.
"""

import json
from pathlib import Path

PLACE = Path(__file__).with_name("ocelli.json")
# What every query is narrowed down to by the variables at the top.
REPLICA = 'job=~"$job",namespace=~"$namespace",instance=~"$instance"'
MODEL = f'{REPLICA},model=~"$model"'
DEVICE = f'{REPLICA},device=~"$device"'
INFERENCE = 'route=~"/predictions/[^ ]+|/v1/models/.+:predict|/v2/models/.+/infer|/.+/(ModelInfer|(Stream)?Predictions)"'
ANSWERED = f'{INFERENCE},class="answered"'
FAILED = 'outcome=~"full|draining|unavailable|late|device|storage|internal"'
ANSWERABLE = 'outcome=~"ok|full|draining|unavailable|late|device|storage|internal"'
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24


def rate(metric, labels):
    return f"rate({metric}{{{labels}}}[$__rate_interval])"


def new(metric, labels):
    """What a counter has counted within five minutes, which may be there only from its first time on, at 1."""
    series = f"{metric}{{{labels}}}"
    return f"(({series} unless last_over_time({series}[5m] offset 5m)) or increase({series}[5m]))"


def quantile(q, labels):
    buckets = f"sum by (le) ({rate('ocelli_http_request_duration_seconds_bucket', labels)})"
    return f"histogram_quantile({q}, {buckets})"


def target(expression, legend, **more):
    return {"expr": expression, "legendFormat": legend, "datasource": SOURCE, **more}


def panel(kind, title, about, unit, width, height, targets, options=None, custom=None, **defaults):
    for letter, one in zip("ABCDEFGH", targets):
        one["refId"] = letter
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "gridPos": {"w": width, "h": height},
        "targets": targets,
        "options": options or {},
        "fieldConfig": {"defaults": {"unit": unit, "custom": custom or {}, **defaults}, "overrides": []},
    }


def lines(title, about, unit, *targets, width=8, height=8, stacked=False, **defaults):
    """Values over time."""
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    custom = {"fillOpacity": 10, "lineWidth": 1, "showPoints": "never"}
    if stacked:
        custom |= {"fillOpacity": 60, "stacking": {"mode": "normal", "group": "A"}}
    defaults = {"min": 0, **defaults}
    return panel("timeseries", title, about, unit, width, height, list(targets), options, custom, **defaults)


def number(title, about, unit, expression, *steps):
    """One number of now. `steps`: from which value on it is yellow and red."""
    colours = [{"color": "green", "value": None}]
    colours += [{"color": colour, "value": value} for colour, value in zip(("yellow", "red"), steps)]
    options = {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}
    return panel(
        "stat", title, about, unit, 4, 4, [target(expression, "")], options,
        thresholds={"mode": "absolute", "steps": colours},
    )


def heat(title, about, unit, buckets, width=8):
    """A histogram over time."""
    options = {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "scale": "exponential", "exponent": 0.5, "steps": 64},
        "tooltip": {"mode": "single", "yHistogram": True},
        "yAxis": {"unit": unit},
        "legend": {"show": True},
    }
    expression = f"sum by (le) ({buckets})"
    return panel("heatmap", title, about, unit, width, 8, [target(expression, "{{le}}", format="heatmap")], options)


def states(title, about, expression, legend, width=12):
    """Which of its states something is in, over time."""
    return panel(
        "state-timeline", title, about, "short", width, 8, [target(expression, legend)],
        {"showValue": "never", "mergeValues": True, "legend": {"displayMode": "list", "placement": "bottom"}},
        {"fillOpacity": 80},
    )


def stage(name, about):
    buckets = rate("ocelli_stage_duration_seconds_bucket", f'{MODEL},stage="{name}"')
    return heat(f"Stage {name}", about, "s", buckets)


def failed(window="$__rate_interval"):
    part = f"sum(rate(ocelli_outcomes_total{{{MODEL},{FAILED}}}[{window}]))"
    return f"{part} / clamp_min(sum(rate(ocelli_outcomes_total{{{MODEL},{ANSWERABLE}}}[{window}])), 0.001)"


def rows():
    """Each row's title and panels."""
    yield "Now", [
        number("Requests", "For models, a second.", "reqps", f"sum({rate('ocelli_outcomes_total', MODEL)})"),
        number(
            "Failed", "Of what could have been answered; the objective is 0.1 %.", "percentunit", failed(), 0.001, 0.01
        ),
        number(
            "99 % within", "From an inference request's headers to the head of its answer; the objective is 1 s.", "s",
            quantile(0.99, f"{REPLICA},{ANSWERED}"), 0.5, 1,
        ),
        number(
            "Oldest waiting", "Age of the job that has waited longest for a device.", "s",
            f"max(ocelli_queue_oldest_age_seconds{{{REPLICA}}})", 1, 5,
        ),
        number(
            "Devices that serve", "Suspect ones serve as well.", "short",
            f'sum(ocelli_device_state{{{REPLICA},state=~"serving|suspect"}})',
        ),
        number("Ready replicas", "That take requests: /v2/health/ready answers 200.", "short", f"sum(ocelli_ready{{{REPLICA}}})"),
    ]
    yield "Traffic", [
        lines(
            "Requests by route", "Answered, with any code.", "reqps",
            target(f"sum by (route) ({rate('ocelli_http_requests_total', REPLICA)}) > 0", "{{route}}"),
        ),
        lines(
            "Requests by code", "429: full; 503: draining, or no model or device; 504: late.", "reqps",
            target(f"sum by (code) ({rate('ocelli_http_requests_total', REPLICA)})", "{{code}}"), stacked=True,
        ),
        lines(
            "How requests ended", "Per model; docs/metrics.md says what each outcome means.", "reqps",
            target(f"sum by (model, outcome) ({rate('ocelli_outcomes_total', MODEL)})", "{{model}} {{outcome}}"),
        ),
        lines(
            "Time to the head of the reply", "Inference requests that were answered.", "s",
            *(target(quantile(q, f"{REPLICA},{ANSWERED}"), f"{q * 100:g} %") for q in (0.5, 0.95, 0.99)),
        ),
        lines(
            "In flight", "Requests between their headers and the end of their reply, and the bound.", "short",
            target(f"sum(ocelli_requests_in_flight{{{REPLICA}}})", "in flight"),
            target(f"sum(ocelli_requests_in_flight_max{{{REPLICA}}})", "at most"),
        ),
        lines(
            "Bytes in flight", "Of request bodies, and the bound.", "bytes",
            target(f"sum(ocelli_in_flight_bytes{{{REPLICA}}})", "in flight"),
            target(f"sum(ocelli_in_flight_bytes_max{{{REPLICA}}})", "at most"),
        ),
        lines(
            "Turned away at the door", "On their headers, for want of room.", "reqps",
            target(f"sum by (reason) ({rate('ocelli_refused_total', REPLICA)})", "{{reason}}"),
        ),
        lines(
            "Connections", "Open on the API.", "short",
            target(f"sum by (instance) (ocelli_http_connections{{{REPLICA}}})", "{{instance}}"),
            target(f"min(ocelli_http_connections_max{{{REPLICA}}})", "at most, on each listener"),
            target(f"sum by (instance) (ocelli_http_listeners_full{{{REPLICA}}})", "{{instance}} listeners that are full"),
        ),
        lines(
            "Connections opened", "And those that found as many open as may be, or could not be accepted.", "cps",
            target(f"sum({rate('ocelli_http_connections_total', REPLICA)})", "opened"),
            target(f"sum({rate('ocelli_http_connections_capped_total', REPLICA)})", "at the bound"),
            target(f"sum({rate('ocelli_http_accept_errors_total', REPLICA)})", "not accepted"),
        ),
        lines(
            "Connections that were ended", "idle is as it should be; evicted made room for others; the rest are slow clients.", "cps",
            target(f"sum by (reason) ({rate('ocelli_http_connections_ended_total', REPLICA)})", "{{reason}}"),
            target(f"sum({rate('ocelli_http_streams_reset_total', REPLICA)})", "stream reset"),
        ),
    ]
    mean = f"sum by (stage) ({rate('ocelli_stage_duration_seconds_sum', MODEL)})"
    yield "Where the time goes", [
        stage("decode", "Bytes to pixels to model input, per image."),
        stage("queue", "Waiting for a device, per job."),
        stage("stage", "Putting a batch together, per batch."),
        stage("compute", "Running the model, per batch."),
        stage("reply", "From the result to the end of the reply, per job."),
        lines(
            "Mean of each stage", "", "s",
            target(f"{mean} / (sum by (stage) ({rate('ocelli_stage_duration_seconds_count', MODEL)}) > 0)", "{{stage}}"),
        ),
    ]
    items = rate("ocelli_items_total", MODEL)
    yield "Queue and batches", [
        lines(
            "Items that wait or run", "Per model.", "short",
            target(f"sum by (model) (ocelli_queue_items{{{MODEL}}})", "{{model}}"), stacked=True,
        ),
        lines(
            "Queue in use", "Part of queue_items_max and of queue_bytes_max; at the bound, requests are refused.", "percentunit",
            target(f"sum(ocelli_queue_items{{{REPLICA}}}) / sum(ocelli_queue_items_max{{{REPLICA}}})", "items"),
            target(f"sum(ocelli_queue_bytes{{{REPLICA}}}) / sum(ocelli_queue_bytes_max{{{REPLICA}}})", "bytes"), max=1,
        ),
        lines(
            "Bytes that wait or run", "All models, and the bound.", "bytes",
            target(f"sum(ocelli_queue_bytes{{{REPLICA}}})", "held"),
            target(f"sum(ocelli_queue_bytes_max{{{REPLICA}}})", "at most"),
        ),
        lines(
            "Oldest waiting", "Per replica.", "s",
            target(f"max by (instance) (ocelli_queue_oldest_age_seconds{{{REPLICA}}})", "{{instance}}"),
        ),
        lines(
            "Decoding", "Files and other long work that wait for the CPU or are being decoded, and the threads for it.", "short",
            target(f"sum(ocelli_decode_jobs{{{REPLICA}}})", "wait or run"),
            target(f"sum(ocelli_decode_threads{{{REPLICA}}})", "threads"),
        ),
        heat("Items of a batch", "Without padding.", "short", rate("ocelli_batch_items_bucket", MODEL)),
        lines(
            "Mean batch", "Items, without padding.", "short",
            target(
                f"sum by (model) ({rate('ocelli_batch_items_sum', MODEL)})"
                f" / (sum by (model) ({rate('ocelli_batch_items_count', MODEL)}) > 0)",
                "{{model}}",
            ),
        ),
        lines(
            "Padding", "Part of the rows that were computed only to fill a batch.", "percentunit",
            target(
                f"sum by (model) ({rate('ocelli_batch_padding_items_total', MODEL)})"
                f" / (sum by (model) ({rate('ocelli_batch_padding_items_total', MODEL)}) + sum by (model) ({items}) > 0)",
                "{{model}}",
            ),
        ),
    ]
    compute = rate("ocelli_stage_duration_seconds_sum", f'{DEVICE},stage="compute"')
    both = f'{DEVICE},model=~"$model"'
    yield "Devices", [
        states(
            "State of devices", "docs/devices.md says what each state is.", f"ocelli_device_state{{{DEVICE}}} == 1",
            "{{instance}} {{device}} {{state}}",
        ),
        lines(
            "Changes of state", "What brought devices where they are, within five minutes.", "short",
            target(f"sum by (device, state, reason) ({new('ocelli_device_transitions_total', DEVICE)})", "{{device}} {{state}}: {{reason}}"),
            target(f"sum by (instance) (ocelli_gpus_failed{{{REPLICA}}})", "{{instance}} GPUs that failed as it started"),
            width=12,
        ),
        lines(
            "Batches under way", "Mean number of batches that a device runs at once: its busy time per time.", "short",
            target(f"sum by (instance, device) ({compute})", "{{instance}} {{device}}"),
        ),
        lines(
            "Batches that failed", "And why; docs/metrics.md has the reasons.", "ops",
            target(f"sum by (device, reason) ({rate('ocelli_failed_batches_total', both)})", "{{device}} {{reason}}"),
        ),
        lines(
            "Jobs that were run again", "After a batch that failed; docs/metrics.md has the reasons.", "ops",
            target(f"sum by (device, reason) ({rate('ocelli_retried_jobs_total', both)})", "{{device}} {{reason}}"),
        ),
        lines(
            "Answered by a stand-in", "Jobs that another device answered than the one that is meant for the model, within five minutes.", "short",
            target(f"sum by (model, device, reason) ({new('ocelli_fallbacks_total', both)})", "{{model}} {{device}} {{reason}}"),
        ),
        lines(
            "Batch sizes that are not recorded", "Since the CUDA graphs of a model are used up: loaded anew, it begins again with none.", "ops",
            target(f"sum by (model, device) ({rate('ocelli_unrecorded_sizes_total', both)})", "{{model}} {{device}}"),
        ),
        lines(
            "Largest batch", "Where a device has too little memory for full batches of a model.", "short",
            target(f"ocelli_batch_ceiling_items{{{both}}}", "{{instance}} {{model}} {{device}}"),
        ),
    ]
    yield "GPUs", [
        lines(
            "Utilisation", "Share of the time in which a kernel of anybody ran.", "percentunit",
            target(f"ocelli_device_utilization_ratio{{{DEVICE}}}", "{{instance}} {{device}}"), max=1,
        ),
        lines(
            "Memory", "Held by this process and by others, and all there is.", "bytes",
            target(f'ocelli_device_memory_bytes{{{DEVICE},kind=~"own|others|total"}}', "{{instance}} {{device}} {{kind}}"),
        ),
        lines("Temperature", "", "celsius", target(f"ocelli_device_temperature_celsius{{{DEVICE}}}", "{{instance}} {{device}}")),
        lines("Power", "", "watt", target(f"ocelli_device_power_watts{{{DEVICE}}}", "{{instance}} {{device}}")),
        lines(
            "Energy per item", "Of a GPU, idle time included: per image, or per spot that is fitted.", "joule",
            target(
                # Replicas that share a GPU all tell of the same energy, each of items of its own.
                f"max by (device) ({rate('ocelli_device_energy_joules_total', DEVICE)})"
                f" / (sum by (device) ({rate('ocelli_items_total', DEVICE)}) > 0)",
                "{{device}}",
            ),
        ),
        lines(
            "Waited for", "Part of the time in which a GPU was waited for.", "percentunit",
            target(f"sum by (instance, device) ({rate('ocelli_device_wait_seconds_total', DEVICE)})", "{{instance}} {{device}}"),
        ),
        lines(
            "Others on it", "Processes that compute there beside this one.", "short",
            target(f"ocelli_device_other_processes{{{DEVICE}}}", "{{instance}} {{device}}"),
        ),
        lines(
            "Xid errors", "Since the server started, by their number in NVIDIA's catalogue.", "short",
            target(f"sum by (device, xid) (ocelli_device_xids_total{{{DEVICE}}})", "{{device}} Xid {{xid}}"),
        ),
        lines(
            "Clocks lowered", "1 where a GPU runs slower now, by what lowers its clocks.", "short",
            target(f"ocelli_device_throttled{{{DEVICE}}}", "{{instance}} {{device}} {{cause}}"), max=1,
        ),
        lines(
            "Memory errors", "Since the driver was loaded: that could not be put right, and that were.", "short",
            target(f"ocelli_device_ecc_uncorrected_total{{{DEVICE}}}", "{{instance}} {{device}} not put right"),
            target(f"ocelli_device_ecc_corrected_total{{{DEVICE}}}", "{{instance}} {{device}} put right"),
        ),
        lines(
            "Repeated transfers", "Over PCI Express, since the driver was loaded.", "short",
            target(f"ocelli_device_pcie_replays_total{{{DEVICE}}}", "{{instance}} {{device}}"),
        ),
        lines(
            "Decoded in vain", "Files whose callers left, or whose deadlines passed, while they were decoded.", "ops",
            target(f"sum by (instance) ({rate('ocelli_decode_in_vain_total', REPLICA)})", "{{instance}}"),
        ),
        lines(
            "JPEGs decoded by a GPU", "With the option gpu_jpeg, where the CPU had more than it has threads for.", "ops",
            target(f"sum by (instance) ({rate('ocelli_gpu_jpegs_total', REPLICA)})", "{{instance}}"),
        ),
    ]
    yield "Models and the fitter", [
        states(
            "State of models", "Of each version.", f"max by (model, version, state) (ocelli_model_state{{{MODEL}}}) == 1",
            "{{model}} {{version}} {{state}}", width=8,
        ),
        lines(
            "Loads that failed", "Versions of which the last load failed, though an older one may go on serving.", "short",
            target(f"sum by (model, version) (ocelli_model_load_failed{{{MODEL}}})", "{{model}} {{version}}"),
        ),
        lines(
            "Items", "A second: images, or spots that are fitted.", "ops",
            target(f"sum by (model, device) ({items})", "{{model}} {{device}}"),
        ),
        lines(
            "Time per item", "Of a device, in batches: what one image, or one fit, costs.", "s",
            target(
                "sum by (model, device) (" + rate("ocelli_stage_duration_seconds_sum", f'{MODEL},stage="compute"') + ")"
                f" / (sum by (model, device) ({items}) > 0)",
                "{{model}} {{device}}",
            ),
        ),
    ]
    yield "Process", [
        lines(
            "Processors", "In use.", "short",
            target(f"sum by (instance) ({rate('process_cpu_seconds_total', REPLICA)})", "{{instance}}"), width=6,
        ),
        lines(
            "Memory", "What counts against the limit (resident memory where there is none), and the limit.", "bytes",
            target(
                f"ocelli_memory_used_bytes{{{REPLICA}}} or process_resident_memory_bytes{{{REPLICA}}}", "{{instance}}"
            ),
            target(f"min(ocelli_memory_bytes_max{{{REPLICA}}})", "at most"), width=6,
        ),
        lines(
            "Memory of decoded images", "And the bound.", "bytes",
            target(f"sum(ocelli_decode_bytes{{{REPLICA}}})", "held"),
            target(f"sum(ocelli_decode_bytes_max{{{REPLICA}}})", "at most"), width=6,
        ),
        lines(
            "Open files", "And the bound.", "short",
            target(f"process_open_fds{{{REPLICA}}}", "{{instance}}"),
            target(f"min(process_max_fds{{{REPLICA}}})", "at most"), width=6,
        ),
        lines(
            "Shared memory", "Bytes of tensors a second that callers leave and find in regions of theirs.", "Bps",
            target(f"sum by (instance) ({rate('ocelli_shared_memory_read_bytes_total', REPLICA)})", "{{instance}} read"),
            target(f"sum by (instance) ({rate('ocelli_shared_memory_written_bytes_total', REPLICA)})", "{{instance}} written"),
            width=6,
        ),
        lines(
            "Regions of shared memory", "That callers have registered.", "short",
            target(f"sum by (instance) (ocelli_shared_memory_regions{{{REPLICA}}})", "{{instance}}"), width=6,
        ),
        lines(
            "Work dropped at the end", "Because a drain took too long, or a second signal came.", "short",
            target(f"sum by (instance, reason) (ocelli_dropped_total{{{REPLICA}}})", "{{instance}} {{reason}}"), width=6,
        ),
        lines("Threads", "", "short", target(f"process_threads{{{REPLICA}}}", "{{instance}}"), width=6),
        lines(
            "Running for", "Since the last start.", "s",
            target(f"time() - process_start_time_seconds{{{REPLICA}}}", "{{instance}}"), width=6,
        ),
        lines(
            "Lines of the log that were lost", "Whoever reads the log, or its disk, is too slow, full or gone.", "short",
            target(
                f"sum by (instance, log) (increase(ocelli_log_lines_lost_total{{{REPLICA}}}[$__rate_interval]))",
                "{{instance}} {{log}}",
            ),
            width=6,
        ),
        lines(
            "Lines of the log that wait", "For whoever reads the standard error.", "bytes",
            target(f"sum by (instance) (ocelli_log_waiting_bytes{{{REPLICA}}})", "{{instance}}"), width=6,
        ),
        lines(
            "Spans that were lost", "The collector of traces is too slow, gone, or does not take all that it is sent.", "short",
            target(
                f"sum by (instance, reason) (increase(ocelli_trace_spans_lost_total{{{REPLICA}}}[$__rate_interval]))",
                "{{instance}} {{reason}}",
            ),
            width=6,
        ),
        lines(
            "Builds", "Replicas of each.", "short",
            target(f"count by (version, commit) (ocelli_build_info{{{REPLICA}}})", "{{version}} {{commit}}"), width=6,
        ),
    ]


def variable(name, query, **more):
    return {
        "type": "query", "name": name, "label": name, "datasource": SOURCE, "definition": query,
        "query": {"query": query, "refId": name}, "refresh": 2, "sort": 1, "multi": True, "includeAll": True,
        # Also where the label is missing: namespaces are Kubernetes'.
        "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}, **more,
    }


def dashboard():
    """The whole file, as JSON has it."""
    panels, y = [], 0
    for title, content in rows():
        panels.append({"type": "row", "title": title, "collapsed": False, "panels": [], "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        y += 1
        x = height = 0
        for one in content:
            place = one["gridPos"]
            if x + place["w"] > WIDTH:
                x, y = 0, y + height
            place |= {"x": x, "y": y}
            x, height = x + place["w"], place["h"]
            panels.append(one)
        y += height
    for number_, one in enumerate(panels, 1):
        one["id"] = number_
    restarts = f"changes(process_start_time_seconds{{{REPLICA}}}[1m]) > 0"
    return {
        "id": None,
        "uid": "ocelli",
        "title": "Ocelli",
        "description": "Requests, stages, queues, devices and processes of Ocelli.",
        "tags": ["ocelli"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "links": [],
        "annotations": {
            "list": [
                {
                    "name": "Starts", "datasource": SOURCE, "enable": True, "iconColor": "blue",
                    "expr": restarts, "titleFormat": "started", "textFormat": "{{instance}}", "step": "30s",
                }
            ]
        },
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "label": "data source", "query": "prometheus", "current": {}, "hide": 0, "refresh": 1},
                variable("job", "label_values(ocelli_build_info, job)"),
                variable("namespace", 'label_values(ocelli_build_info{job=~"$job"}, namespace)'),
                variable("instance", 'label_values(ocelli_build_info{job=~"$job",namespace=~"$namespace"}, instance)'),
                variable("model", f"label_values(ocelli_outcomes_total{{{REPLICA}}}, model)"),
                variable("device", f"label_values(ocelli_device_state{{{REPLICA}}}, device)"),
            ]
        },
        "panels": panels,
    }


def text():
    return json.dumps(dashboard(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    PLACE.write_text(text())
