"""The endpoints that say what there is and how it is."""

from __future__ import annotations

from served import MODEL, Running, engine_for

from gamaneh.server.server_options import ServerOptions


def test_the_model_is_listed_and_can_be_looked_up(server: Running) -> None:
    (listed,) = server.http.get("/v1/models").json()["data"]
    assert (listed["id"], listed["object"], listed["max_model_len"]) == (MODEL, "model", 256)
    assert server.http.get(f"/v1/models/{MODEL}").json() == listed
    assert server.http.get("/v1/models/another").json()["error"]["code"] == "model_not_found"


def test_a_model_may_have_another_name(start) -> None:
    running = start(engine_for(), ServerOptions(served_model_name="house/model"))
    assert running.http.get("/v1/models/house/model").status_code == 200
    assert running.complete(model="house/model", max_tokens=1)["model"] == "house/model"
    assert running.refusal(status=404, prompt="a", model=MODEL)["param"] == "model"


def test_an_idle_server_is_healthy_and_ready(server: Running) -> None:
    assert server.http.get("/health").json() == {"status": "ok", "failure": None}
    assert server.http.get("/ready").json()["status"] == "ready"


def test_metrics_count_tokens_and_responses(start) -> None:
    running = start(engine_for())
    running.complete(max_tokens=7, ignore_eos=True)
    running.refusal(prompt="")
    running.http.get("/nothing/here")
    response = running.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    counted = [line for line in response.text.splitlines() if "responses_total{" in line]
    assert {line.split(" ")[0].split("{")[1]: float(line.split(" ")[1]) for line in counted} == {
        'route="/v1/completions",status="200"}': 1,
        'route="/v1/completions",status="400"}': 1,
        'route="other",status="404"}': 1,
    }
    assert "gamaneh_spec_decode_num_draft_tokens_total" in response.text


def test_what_speculation_does_is_told(server: Running) -> None:
    state = server.http.get("/v1/speculation").json()
    assert state["default"]["proposer"] == "scripted"
    assert list(state["proposers"]) == ["scripted"]


def test_the_page_is_served(server: Running) -> None:
    assert "<html" in server.http.get("/").text


def test_unknown_paths_and_methods_are_error_objects(server: Running) -> None:
    for response, status in [(server.http.get("/v1/nothing"), 404), (server.http.get("/v1/completions"), 405)]:
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"
