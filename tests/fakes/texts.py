"""Texts of many kinds, for what has to hold whatever a prompt is made of."""

TEXTS = {
    "English": "The quick brown fox jumps over the lazy dog, doesn't it? ",
    "German": "Fünf große Übergrößenträger prüften die Straßenbeläge. ",
    "Greek": "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. ",
    "Russian": "Съешь же ещё этих мягких французских булок. ",
    "Arabic": "نص حكيم له سر قاطع وذو شأن عظيم ﷺ ",
    "Hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה. ",
    "Hindi": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश। ",
    "Thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า ",
    "Chinese": "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。",  # noqa: RUF001
    "Japanese": "いろはにほへと㌔ちりぬるを、株式会社㍿。",
    "Korean": "키스의 고유조건은 입술끼리 만나야 하고. ",
    "Tibetan": "༄༅། །བོད་སྐད་ཡིག་གཟུགས། ཀྵ ",
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈🇰🇷😀🫠 ",
    "music": "𝅘𝅥𝅮𝄞𝅗𝅥 ",
    "code": "for(int i=0;i<n;++i){a[i]^=b[i]>>3;}\t// ½ ﬁx\n",
    "JSON": '{"a":[1,2.5e-7,null,true],"b":{"c":"\\u00e9\\n"}}',
    "base64": "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ+/9p==",
    "hex": "0xdeadbeef 9f86d081884c7d659a2feaa0c55ad015 ",
    "blanks": " \t\n\r\u00a0\u2003\u3000",
}
