"""The style sheet of a page: light and dark, on paper, narrow and wide."""

STYLE = """
:root{--bg:#fff;--fg:#1c2127;--quiet:#5f6b7a;--edge:#d9dee4;--panel:#f6f8fa;--grid:#e6eaee;
--critical:#b3261e;--warning:#9a6700;--info:#0b63b0;--good:#1a7f37;
--c0:#1f6feb;--c1:#d1570a;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#0a7d8c;--c6:#7d6a00;--c7:#57606a}
@media(prefers-color-scheme:dark){:root{--bg:#0f1419;--fg:#dde3ea;--quiet:#93a0ae;--edge:#2b333c;--panel:#171d24;
--grid:#222a32;--critical:#ff7b72;--warning:#e3b341;--info:#79c0ff;--good:#56d364;
--c0:#58a6ff;--c1:#ff9d57;--c2:#56d364;--c3:#bc8cff;--c4:#ff7bb5;--c5:#39c5d4;--c6:#d9c24a;--c7:#a6b1bd}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,
"Noto Sans","DejaVu Sans",sans-serif}
header,main,footer{max-width:980px;margin:0 auto;padding:0 20px}
header{padding-top:24px}h1{font-size:24px;margin:0}header p{margin:2px 0 10px;color:var(--quiet)}
nav{display:flex;flex-wrap:wrap;gap:2px 16px}nav a{color:var(--info);text-decoration:none}
h2{font-size:18px;margin:30px 0 8px;border-bottom:1px solid var(--edge);padding-bottom:4px}
h3{font-size:15px;margin:18px 0 6px}
p{margin:6px 0}.quiet,footer{color:var(--quiet);font-size:13px}footer{padding-top:20px;padding-bottom:40px}
main>p.critical,main>p.warning,main>p.good,main>p.info{padding:10px 14px;border-left:5px solid;background:var(--panel);
font-weight:600}
main>p.critical{border-left-color:var(--critical)}main>p.warning{border-left-color:var(--warning)}
main>p.good{border-left-color:var(--good)}main>p.info{border-left-color:var(--info)}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:13.5px;margin:8px 0}
th,td{padding:4px 12px 4px 0;border-bottom:1px solid var(--edge);text-align:left;vertical-align:top}
th{color:var(--quiet);font-weight:600}th.n,td.n{text-align:right;font-variant-numeric:tabular-nums;padding-right:16px}
tr.better td{color:var(--good)}tr.worse td{color:var(--critical)}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:13px}
pre{background:var(--panel);padding:10px;overflow-x:auto;line-height:1.25}
figure{margin:14px 0}figcaption{font-size:13px;font-weight:600}
svg{width:100%;height:auto;display:block;font-size:11px}
svg text{fill:var(--quiet)}svg text.y{text-anchor:end}svg text.x{text-anchor:middle}
svg text.limit{text-anchor:end;fill:var(--critical)}
svg .grid{stroke:var(--grid)}svg line.limit{stroke:var(--critical);stroke-dasharray:5 3}
svg line.peak{stroke:var(--fg);stroke-width:2}svg .line{fill:none;stroke-width:1.6;stroke-linejoin:round}
svg .dashed{stroke-dasharray:6 3}svg .mark{opacity:.13}
svg .mark.critical{fill:var(--critical)}svg .mark.warning{fill:var(--warning)}svg .mark.info{fill:var(--info)}
.legend{font-size:12.5px;color:var(--quiet);margin:2px 0}.legend span{margin-right:14px;white-space:nowrap}
.legend i{display:inline-block;width:11px;height:11px;margin-right:5px;vertical-align:-1px;border-radius:2px}
.finding{border:1px solid var(--edge);border-left:5px solid var(--info);padding:6px 14px;margin:10px 0;
border-radius:4px}
.finding.critical{border-left-color:var(--critical)}.finding.warning{border-left-color:var(--warning)}
.finding h3{margin:6px 0 2px}.finding ul{margin:4px 0;padding-left:20px;font-size:13.5px;color:var(--quiet)}
.advice{font-weight:600}.advice::before{content:"→ ";color:var(--good)}
@media print{nav{display:none}figure,article,tr{break-inside:avoid}}
""" + "".join(
    f"svg .c{number}{{stroke:var(--c{number})}}svg circle.c{number},svg .above.c{number}{{fill:var(--c{number})}}"
    f".legend i.c{number}{{background:var(--c{number})}}\n"
    for number in range(8)
)

LEDGER = {
    "weights": "#4a5fc1",
    "kv_used": "#d97a1e",
    "kv_free": "#f2c68c",
    "kv_pool": "#e6a257",
    "work": "#2f9e8f",
    "rest": "#8e6bbf",
    "engine": "#5b8dd6",
    "other": "#b04a6f",
    "unexplained": "#8a8f98",
    "reserved": "#5a6068",
    "free": "#d5dae0",
}
"""The colours of the parts of a card's memory."""

STYLE += "".join(
    f"svg .m-{name.replace('_', '-')}{{fill:{colour}}}.legend i.m-{name.replace('_', '-')}{{background:{colour}}}\n"
    for name, colour in LEDGER.items()
)
