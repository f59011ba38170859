"""Pages of other origins: they ask only where the operator allows them, and errors reach them too."""

from __future__ import annotations

import json
from typing import Any

import pytest
from served import Running, engine_for

from gamaneh.errors import InvalidOption
from gamaneh.server.server_options import ServerOptions

PAGE = "https://page.example"
BODY = json.dumps({"prompt": "hello", "max_tokens": 3, "ignore_eos": True})
JSON = {"Content-Type": "application/json"}


def post(running: Running, headers: dict[str, str], body: str = BODY) -> Any:
    request = running.http.build_request("POST", "/v1/completions", content=body, headers=headers)
    return running.http.send(request)


class TestWithoutAllowedOrigins:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Content-Type": "text/plain"},
            {"Content-Type": "text/plain;charset=UTF-8", "Origin": PAGE},
            {"Content-Type": "application/x-www-form-urlencoded"},
            {"Content-Type": "multipart/form-data; boundary=x"},
            {"Origin": PAGE},
        ],
    )
    def test_what_a_page_can_send_unasked_is_not_executed(self, start, headers: dict[str, str]) -> None:
        running = start(engine_for())
        response = post(running, headers)
        assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")
        assert running.engine.proposers["scripted"].asked == []

    def test_a_preflight_is_not_answered(self, server: Running) -> None:
        headers = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
        response = server.http.request("OPTIONS", "/v1/completions", headers=headers)
        assert response.status_code == 405
        assert "access-control-allow-origin" not in response.headers

    @pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
    def test_json_is_taken(self, server: Running, kind: str) -> None:
        assert post(server, {"Content-Type": kind}).status_code == 200

    def test_an_encoded_body_is_refused_by_its_encoding(self, server: Running) -> None:
        response = post(server, {**JSON, "Content-Encoding": "gzip"})
        assert response.status_code == 415
        assert "gzip" in response.json()["error"]["message"]


class TestAllowedOrigins:
    @pytest.fixture
    def open_server(self, start) -> Running:
        running: Running = start(engine_for(), ServerOptions(allow_origin=(PAGE,), api_key=(f"a={'0' * 64}",)))
        return running

    def test_a_preflight_needs_no_key(self, open_server: Running) -> None:
        headers = {
            "Origin": PAGE,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type",
        }
        response = open_server.http.request("OPTIONS", "/v1/completions", headers=headers)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == PAGE

    @pytest.mark.parametrize(("headers", "status"), [(JSON, 401), ({"Content-Type": "text/plain"}, 415)])
    def test_errors_have_the_header_too(self, open_server: Running, headers: dict[str, str], status: int) -> None:
        response = post(open_server, {**headers, "Origin": PAGE})
        assert (response.status_code, response.headers["access-control-allow-origin"]) == (status, PAGE)

    def test_streams_have_it(self, start) -> None:
        running = start(engine_for(), ServerOptions(allow_origin=("*",)))
        body = json.dumps({"prompt": "hello", "max_tokens": 3, "stream": True})
        assert post(running, {**JSON, "Origin": PAGE}, body).headers["access-control-allow-origin"] == "*"

    def test_others_have_it_not(self, open_server: Running) -> None:
        response = post(open_server, {**JSON, "Origin": "https://other.example"})
        assert "access-control-allow-origin" not in response.headers

    def test_what_is_no_origin_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="allow_origin"):
            ServerOptions(allow_origin=("page.example/x",))


class TestHosts:
    @pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"])
    def test_names_of_this_machine_are_taken(self, server: Running, host: str) -> None:
        assert server.http.get("/health", headers={"Host": host}).status_code == 200

    @pytest.mark.parametrize("host", ["page.example", "localhost.page.example:8000", "127.0.0.1.page.example"])
    @pytest.mark.parametrize("path", ["/health", "/v1/models", "/"])
    def test_another_name_is_refused_where_only_this_machine_is_served(
        self, server: Running, host: str, path: str
    ) -> None:
        response = server.http.get(path, headers={"Host": host})
        assert (response.status_code, response.json()["error"]["code"]) == (403, "wrong_host")

    def test_an_operator_may_name_more(self, start) -> None:
        running = start(engine_for(), ServerOptions(allow_host=("Page.example",)))
        assert running.http.get("/health", headers={"Host": "page.example"}).status_code == 200

    def test_a_server_for_others_is_called_by_any_name(self, start) -> None:
        running = start(engine_for(), ServerOptions(host="0.0.0.0"))
        assert running.http.get("/health", headers={"Host": "page.example"}).status_code == 200
