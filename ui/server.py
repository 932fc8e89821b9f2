"""The server behind the page: what it hands out, to whom, and what the page may fetch."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import gradio as gr
from plotly.offline import get_plotlyjs
from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tightfit.ui.plot_click import PLOTLY_URL
from tightfit.ui.style import HEAD, KEYS, STYLE, theme

_POLICY = (
    # Gradio compiles its templates in the browser, which counts as eval.
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; worker-src 'self' blob:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def launch(blocks: gr.Blocks, exports: Path, port: int | None, host: str, open_browser: bool) -> None:
    """Serve a page until interrupted.

    Args:
        blocks: the page.
        exports: the one folder whose files the browser may ask for.
        port: where to listen; the first free one from 7860 on unless given.
        host: address to listen on.
        open_browser: whether to open the page in a browser.
    """
    blocks.launch(
        server_name=host,
        server_port=port,
        inbrowser=open_browser,
        share=False,
        quiet=True,
        prevent_thread_lock=True,
        show_error=True,
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        max_file_size="1kb",
        allowed_paths=[str(exports)],
        app_kwargs={"routes": routes(), "middleware": guards(host), "docs_url": None},
        theme=theme(),
        css=STYLE,
        head=HEAD,
        js=KEYS,
    )
    print(f"Tightfit shows its runs at {blocks.local_url} (end it with Ctrl+C)", flush=True)
    blocks.block_thread()


def routes() -> list[BaseRoute]:
    """Return what this server has beside Gradio's own."""
    return [Route(PLOTLY_URL, _plotly)]


def guards(host: str) -> list[Middleware]:
    """Return what stands before every request.

    On this machine alone, only its own names are answered to, so that no web site can reach the page
    under a name of its own.
    """
    if not _is_loopback(host):
        return [Middleware(_Headers, headers=_HEADERS)]
    names = ["localhost", "127.0.0.1", "[::1]", host]
    # Said to be encoded already: compressing costs more time than it saves where there is no network.
    plain = {**_HEADERS, "Content-Encoding": "identity"}
    return [Middleware(TrustedHostMiddleware, allowed_hosts=names), Middleware(_Headers, headers=plain)]


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Headers:
    """Adds headers to every answer."""

    def __init__(self, app: ASGIApp, headers: Mapping[str, str]) -> None:
        self._app, self._headers = app, headers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self._headers)
            await send(message)

        await self._app(scope, receive, add if scope["type"] == "http" else send)


@lru_cache(maxsize=1)
def _script() -> bytes:
    return str(get_plotlyjs()).encode()


def _plotly(request: Request) -> Response:
    headers = {"Cache-Control": "max-age=86400"}
    return Response(_script(), media_type="text/javascript; charset=utf-8", headers=headers)
