"""Place a bundled model on two GPUs, and look at the plan.

Run it, or copy it into a notebook, where ``result`` alone on the last line of a cell shows the
graph, the timeline and the memory. Needs ``pip install 'enplace[notebook]'``.
"""

import enplace as ep

print(ep.samples())

sample = ep.samples()["vgg-19"]
profile = ep.read(sample)
print(repr(profile))

# "pesto" is two V100s with NVLink; ep.clusters() lists the other presets. More rounds, or a
# time_limit_s, give the search more work.
result = ep.place(profile, sample.cluster, options={"rounds": 1})
print(result)

# Everything is a table: where do the longest ops run, and when?
ops = result.schedule.to_pandas()
ops["time_us"] = ops["finish_us"] - ops["start_us"]
print(ops.nlargest(5, "time_us")[["type", "device", "start_us", "time_us"]])
print("Share of the step that each device computes:")
print((ops.groupby("device")["time_us"].sum() / result.step_time_us).to_string())

result.plot().figure.savefig("timeline.png")
result.export("html", "report.html")
