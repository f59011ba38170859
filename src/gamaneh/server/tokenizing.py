"""`/tokenize` and `/detokenize`, in the dialects of other engines: text to token ids and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as HttpRoute

from gamaneh.server.api_errors import invalid
from gamaneh.server.choice import shown
from gamaneh.server.exchange import receive_body
from gamaneh.server.schemas import Message, Schema, parse
from gamaneh.server.service import Service


class TokenizeRequest(Schema):
    """Body of `/tokenize`: a `prompt` (or `content`, as some call it), or `messages`."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: Annotated[list[Message], Field(min_length=1)] | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(Schema):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: list[int]


class Tokenizing:
    """The two endpoints. They need a key, and no engine."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def routes(self) -> Iterator[HttpRoute]:
        """Where they are found."""
        yield HttpRoute("/tokenize", self.tokenize, methods=["POST"])
        yield HttpRoute("/detokenize", self.detokenize, methods=["POST"])

    async def tokenize(self, request: Request) -> Response:
        """Ids of a text, or of a conversation in the model's chat template."""
        return await self._answer(request, self._tokenized)

    async def detokenize(self, request: Request) -> Response:
        """The text of ids, special tokens included."""
        return await self._answer(request, self._detokenized)

    async def _answer(self, request: Request, make: Callable[[bytes], Mapping[str, Any]]) -> Response:
        self.service.keys.identify(request.headers)
        body = await receive_body(request, self.service.options.max_body_bytes)
        return JSONResponse(await asyncio.to_thread(make, body))

    def _tokenized(self, body: bytes) -> Mapping[str, Any]:
        wanted, preparation = parse(TokenizeRequest, body), self.service.preparation
        given = [text for text in (wanted.prompt, wanted.content, wanted.messages) if text is not None]
        if len(given) != 1:
            raise invalid("prompt", f"one of prompt, content and messages must be given, got {len(given)}")
        if isinstance(given[0], str):
            tokens = preparation.read(given[0], special=wanted.add_special_tokens)
        else:
            tokens = preparation.read_messages(given[0])
        told = {"count": len(tokens), "max_model_len": preparation.max_context, "tokens": tokens}
        if wanted.return_token_strs:
            told["token_strs"] = [shown(self.service.tokenizer, token) for token in tokens]
        return told

    def _detokenized(self, body: bytes) -> Mapping[str, Any]:
        tokens = parse(DetokenizeRequest, body).tokens
        size = self.service.engine.engine.vocab_size
        for token in tokens:
            if not 0 <= token < size:
                raise invalid("tokens", f"tokens must hold token ids from 0 to {size - 1}, got {token}")
        text = self.service.tokenizer.decode(tokens, skip_special=False)
        return {"prompt": text, "content": text}
