# ruff: noqa: RUF001, SIM905
"""Random captions with the defects of web text, and the captions that open_clip makes of them."""

import html
import json
import random
import sys
import unicodedata
from pathlib import Path

from open_clip.tokenizer import basic_clean, whitespace_clean

CAPTIONS = 6000
SENTENCES = """
a photo of a cat sitting on a red sofa
Vintage Poster – “Côte d’Azur”, 1935 (framed) ® 20×30 cm
L’été à la plage, voilà où ça mène : 25 €, déjà vu… às vezes àquele
Schöne Grüße aus Köln — Straße & Fußgänger, „Größe“ 50 % größer
El niño comió jalapeños; ¿qué año? ¡Olé! São Paulo, coração, 5° à 10°
Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń, Łódź
Привет мир — «Красная площадь» № 5, зимой; ёлка
Καλημέρα κόσμε· Ελλάδα, Σαντορίνη 2019
İstanbul’da güneşli bir gün, Şişli ığdır; Ķekava ļoti skaista ēka, žąsis
猫の写真、東京タワー。한국어 사진 北京的秋天
صورة قطة جميلة في القاهرة ٢٠٢٠ תמונה של חתול שלום
हिन्दी में एक तस्वीर ภาพถ่ายแมว ảnh mèo đẹp ở Hà Nội
😀 👩‍👩‍👧‍👦 🏳️‍🌈 ❤️ ✨ 🇩🇪 party “time” ‘n’ fun™ ©2020
naïve café résumé Ångström coöperate façade œuvre cœur Œdipe ½ ¼ ² ³ µm
┌──┐ │x│ └──┘ ▀▄█ ≈ 5° ≠ ∑ √2 ∞ ◊ † ‡ ‰ ƒ ¬ ¦ ¤ ª º
""".strip().split("\n")
WORDS = [word for sentence in SENTENCES for word in sentence.split()]
ENTITIES = """
&amp; &lt;b&gt; &quot; &#39; &#x27; &nbsp; &eacute; &EACUTE; &Eacute &amp;amp; &amp;lt;i&amp;gt; &copy
&copycat &notit; &notin; &unknown; & &; &# &#; &#x; &#128512; &#x1F600; &#0; &#x80; &#150; &#xD800;
&#1114112; &#99999999999; &#xfffe; &#11; &#13; &SZLIG; &LTIMES; &alpha;&beta
&CounterClockwiseContourIntegral; &#59; &NTILDE; &ampquot; &frac12; &FRAC12; &hellip; &zwj; &shy;
&amp;eacute; &Acirc;&copy; &Atilde;&copy;
""".split()
ODD = (
    "\x00|\x07|\x0b|\x0c|\x1b|\x1c|\x1f|\x7f|\x85|\x8d|\x91|\x9d|\x1a|\xa0|\xad|\u061c|\u200b|\u200d|"
    "\u200e|\u2028|\u2029|\u202e|\u2060|\u206a|\ufeff|\ufff9|\ufffc|\ufffd|\u0301|\u3000|\r\n|\r|\n|\t|"
    "\x1b[31m|\x1b[0;1m|\x1b[٣m|ﬁ|ﬄ|ĳ|ŉ|ǅ|ﬆ|ＬＯＵＤ|ｶﾞﾀｰﾝ|ﾡ|￦|｡|‘|’|‚|‛|“|”|‟|ʼ|<|<br>|Ã |Â |Ã la|Ã quele|"
    "â€œ|â€™|â€�|Â©|Ã©|Ãƒ|√±|‚Äì|Ð|à¸|ðŸ˜€|í\xa0½í¸\x80|À\x80|œ|×²|°C|É°|\U0001f600|\U000e0041|\U00010330"
).split("|")
# What UTF-8 is misread as, by ftfy's own list and by what it does not know.
ENCODINGS = """
latin-1 cp1252 cp1251 cp1250 cp1253 cp1254 cp1257 iso-8859-2 mac-roman cp437 sloppy-windows-1252
sloppy-windows-1251 sloppy-windows-1253 cp850 koi8-r shift-jis
""".split()


def misread(rng: random.Random, text: str) -> str:
    """UTF-8 (or CESU-8, or Java's) in another encoding, with what that lacks lost, or A0 made a space."""
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.1:
        utf16 = text.encode("utf-16-le", "surrogatepass")
        units = [int.from_bytes(utf16[i : i + 2], "little") for i in range(0, len(utf16), 2)]
        data = b"".join(chr(unit).encode("utf-8", "surrogatepass") for unit in units).replace(
            b"\x00", b"\xc0\x80"
        )
    weights = [6, 6, 2, 2, 2, 2, 2, 2, 2, 2, 6, 2, 2, 1, 1, 1]
    encoding = rng.choices(ENCODINGS, weights)[0]
    errors = rng.choice(["replace", "replace", "ignore"])
    text = data.decode(encoding, errors)
    if rng.random() < 0.3:
        text = text.replace("\xa0", " ")
    if rng.random() < 0.1:
        text = text.replace("\ufffd", "?")
    return text


def caption(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.35:
        text = rng.choice(SENTENCES)
    else:
        text = " ".join(rng.choice(WORDS) for _ in range(rng.choice([1, 2, 3, 5, 8, 13])))
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        text = misread(rng, text)
        if rng.random() < 0.2:
            text = text[rng.randrange(len(text) + 1) :]
    for _ in range(rng.choice([0, 0, 0, 1, 2, 4])):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(rng.choice([ENTITIES, ODD, WORDS])) + text[at:]
    if rng.random() < 0.1:
        text = html.escape(text)
    if rng.random() < 0.1:
        text = misread(rng, text)
    if rng.random() < 0.1:
        text = "".join(chr(rng.randrange(0x80, 0x180)) for _ in range(rng.randrange(1, 8))) + text
    if rng.random() < 0.1:
        text = unicodedata.normalize(rng.choice(["NFC", "NFD", "NFKC", "NFKD"]), text)
    # A Rust string holds no lone surrogates.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def main(seed: int, folder: Path) -> None:
    rng = random.Random(seed)
    captions = [caption(rng) for _ in range(CAPTIONS)]
    pairs = [[text, whitespace_clean(basic_clean(text))] for text in captions]
    (folder / "clean.json").write_text(json.dumps(pairs))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
