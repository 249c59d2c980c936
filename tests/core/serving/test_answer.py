import json

import pytest
from tests.core.cli.conftest import enplace  # noqa: F401

import enplace as ep
from enplace.cli.answer import command
from enplace.errors import DoesNotFitError, EnplaceError
from enplace.files.json_text import parse_json
from weight_files import write_folder, write_gguf

MIXED = "rtx-4090,3*rtx-a5000,rtx-3060:12GiB"


@pytest.fixture(scope="module")
def mixed():
    return ep.plan_serving("llama-3-70b-fp8", MIXED, context="4k", requests=8)


def test_figures_are_those_of_the_document_and_the_text(mixed):
    found = mixed.document
    assert (found["context"], found["requests"], found["feasible"]) == (4096, 8, True)
    assert sum(each["layers"] for each in found["devices"]) == 80
    assert found["tokens_per_s"] == pytest.approx(8e6 / found["token_us"])
    assert all(each["spare_bytes"] > 0 for each in found["devices"])
    held = [each["weights_bytes"] for each in found["devices"]]
    assert sum(held) == found["weights_bytes"]
    text = f"{mixed}"
    assert f"{found['tokens_per_s']:.3g} tokens per second, of 8 requests" in text
    assert text.splitlines()[1].startswith("Estimated: ")
    assert "GPU 4 lacks" in text  # under the equal split


def test_what_the_slowest_card_gains_is_a_row():
    found = ep.plan_serving("llama-3.1-8b", "rtx-4090,rtx-3060", requests=4)
    without = found.others["without RTX 3060"]
    assert [found.machine.cluster.devices[each.device].model for each in without.split] == [
        "rtx-4090"
    ]
    assert "without RTX 3060" not in ep.plan_serving("llama-3.1-8b", "2*rtx-3060").others


def test_a_split_that_is_slower_for_its_room_says_so():
    """The rows then have a faster one."""
    roomy = ep.plan_serving("llama-3-70b-fp8", "h100,a100")
    assert roomy.others["without A100"].token_us < roomy.served.token_us
    said = "Of the splits that are as fast within 1.0 %, this one leaves the most room"
    assert said in f"{roomy}"
    assert said not in f"{ep.plan_serving('llama-3-70b-fp8', '8*l4')}"


def test_each_program_gets_its_own_words(mixed):
    counts = [each["layers"] for each in mixed.devices]
    order = [each["label"].removeprefix("GPU ") for each in mixed.devices]
    vllm, flags = mixed.commands["vLLM"], mixed.commands["llama.cpp"]
    assert f"VLLM_PP_LAYER_PARTITION={','.join(map(str, counts))}\n" in vllm
    assert f" CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={','.join(order)} " in vllm
    assert "--max-model-len 4096 --max-num-seqs 8" in vllm
    assert f"-dev {','.join(f'CUDA{number}' for number in order)} -ts " in flags
    assert "-c 32768 -np 8" in flags
    device_map = json.loads(mixed.commands["accelerate"])
    assert device_map["model.layers.79"] == device_map["lm_head"] == int(order[-1])


@pytest.mark.parametrize(("cards", "differ"), [("rtx-3090,rtx-a6000", True), ("2*l4", False)])
def test_where_cards_differ_each_program_is_to_number_them_as_they_are_written(cards, differ):
    """By default, CUDA begins with the fastest."""
    pasted = ep.plan_serving("llama-3.1-8b", cards, requests=8, context="8k").short_commands
    assert [*pasted] == ["vLLM", "llama.cpp", "accelerate"]
    assert all(("CUDA_DEVICE_ORDER=PCI_BUS_ID" in each) == differ for each in pasted.values())


def test_what_the_host_cannot_hold_is_on_the_disk_for_accelerate():
    found = ep.plan_serving("llama-3-70b", "rtx-3060,cpu:16GiB", context=4096)
    device_map = json.loads(found.commands["accelerate"])
    places = list(dict.fromkeys(device_map.values()))
    assert places == ["cpu", "disk", 0]
    layer_gib = found.decoder.n_bytes / 2**30 / 82
    assert sum(each == "disk" for each in device_map.values()) == pytest.approx(
        107 / layer_gib, abs=2
    )
    assert any("offload_folder" in note for note in found.notes)
    enough = ep.plan_serving("llama-3-70b", "rtx-3060,cpu:256GiB", context=4096)
    assert "disk" not in enough.commands["accelerate"] + " ".join(enough.notes)


def test_what_is_pasted_for_accelerate_is_the_same_map(mixed):
    text = mixed.pasted().partition("accelerate:\n")[2].partition("\n}\n")[0]
    names = {}
    exec(text if text.endswith("}") else f"{text}\n}}", names)
    assert names["device_map"] == json.loads(mixed.commands["accelerate"])


def test_a_served_token_is_a_plan_that_is_simulated_alike(tmp_path, mixed):
    mixed.write(tmp_path / "p.enplace", tmp_path / "plan.json")
    found = ep.read_plan(tmp_path / "plan.json", tmp_path / "p.enplace")
    assert found.step_time_us == pytest.approx(mixed.served.alone_us, rel=0.01)
    assert found.fits
    profile = ep.read(tmp_path / "p.enplace")
    assert profile.n_ops == 82
    assert profile.measured.about_times.startswith("Op times are estimated")


def test_a_short_cache_takes_half_and_each_program_is_told():
    usual = ep.plan_serving("llama-3.1-8b", "2*rtx-3060", context="longest", requests=4)
    short = ep.plan_serving(
        "llama-3.1-8b", "2*rtx-3060", context="longest", requests=4, cache="8-bit"
    )
    ratio = short.longest_context / usual.longest_context
    assert ratio == pytest.approx(32 / 17, rel=0.01)
    assert "--kv-cache-dtype fp8" in short.commands["vLLM"]
    assert "-ctk q8_0 -ctv q8_0" in short.commands["llama.cpp"]
    assert "q8_0" not in usual.commands["llama.cpp"]


def test_the_longest_context_and_the_most_requests_fit_and_no_more():
    cards = "rtx-3060,rtx-4070"
    found = ep.plan_serving("llama-3.1-8b", cards, context="longest", requests=4)
    wanted = found.served.costs.wanted
    assert wanted.context == found.longest_context
    with pytest.raises(DoesNotFitError, match=f"at most {wanted.context:,} tokens"):
        ep.plan_serving("llama-3.1-8b", cards, context=wanted.context + 1, requests=4)
    found = ep.plan_serving("llama-3.1-8b", cards, context=4096, requests="most")
    assert found.served.costs.wanted.requests == found.most_requests > 1


def test_the_host_is_the_last_resort_and_the_answer_says_so():
    found = ep.plan_serving("llama-3-70b", "2*rtx-4090,cpu:64GiB", context=1024)
    assert found.devices[0]["label"] == "CPU 0"
    assert found.longest_context == 0
    assert "which is slow" in found.notes[0]
    assert "read from the disk" in found.notes[1]
    assert "vLLM" not in found.commands
    assert "-ngl" in found.commands["llama.cpp"]
    assert found.result.schedule.makespan_us == pytest.approx(found.served.alone_us, rel=0.01)


def test_a_gguf_file_needs_no_modules(tmp_path):
    found = ep.plan_serving(write_gguf(tmp_path / "m.gguf"), "2*t4", context=100)
    assert "accelerate" not in found.commands
    assert "accelerate: no, a GGUF file names no modules." in found.pasted()


def test_tied_weights_stay_on_one_card_for_accelerate(tmp_path):
    from weight_files import llama_shapes

    folder = write_folder(tmp_path / "m", shapes=llama_shapes(head=False))
    device_map = json.loads(ep.plan_serving(folder, "2*t4", context=100).commands["accelerate"])
    assert device_map["lm_head"] == device_map["model.embed_tokens"]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"context": "longest", "requests": "most"}, "but not for both"),
        ({"context": 0}, "context is 0; write 1 to"),
        ({"context": "32kk"}, "context is '32kk'; write"),
        ({"requests": 1 << 40}, "requests is 1099511627776; write 1 to 65,536"),
        ({"objective": "speed"}, "there is no objective 'speed'"),
        ({"cache": "4-bit"}, "cache is '4-bit'; did you mean '8-bit'"),
        ({"reserve": "much"}, "reserve 'much': write a size"),
        ({"cluster": "1000*h100"}, "is no cluster and no card"),
    ],
)
def test_bad_wishes_are_one_line(given, line):
    with pytest.raises(EnplaceError, match=line):
        ep.plan_serving("llama-3.1-8b", **{"cluster": "h100", **given})


def test_the_command_answers_and_writes_files(enplace, tmp_path):  # noqa: F811
    profile, plan = tmp_path / "p.enplace", tmp_path / "plan.json"
    ask = ("plan-serving", "llama-3.1-8b", "--cluster", "2*rtx-3060", "--requests", "2")
    done = enplace(*ask, "--context", "2k", "-o", profile, "--plan", plan, "--json")
    assert done.status == 0
    assert done.document["placement_file"] == f"{plan}"
    assert done.document["estimated"] is True
    assert parse_json(plan.read_bytes())["method"] == "plan-serving"
    assert enplace("simulate", profile, plan).status == 0
    assert "VLLM_PP_LAYER_PARTITION=17,15" in enplace(*ask, "--context", "2k").out


def test_the_command_says_no_or_refuses_in_one_line(enplace, tmp_path):  # noqa: F811
    done = enplace("plan-serving", "llama-3-70b", "--cluster", "h100")
    assert done.status == 1
    assert done.err.count("\n") == 1
    (tmp_path / "m.gguf").write_bytes(b"GGUF\3\0")
    done = enplace("plan-serving", tmp_path / "m.gguf", "--cluster", "h100")
    assert done.status == 2
    assert done.err.startswith(f"enplace: {tmp_path / 'm.gguf'}: byte 4: ")


def test_no_command_replaces_another():
    with pytest.raises(ValueError, match="command 'serve': another one has this name"):
        command("serve")
