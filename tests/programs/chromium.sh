# Chromium, headless: a page's screenshot and its document, made with ICU's data and resources that every process maps. Its
# zygotes have one thread or end, make their processes by fork(2), and these have files, sockets and memory handed to them.
# Then all of it in one process with many threads.
# shellcheck shell=bash disable=SC2034,SC2154
commands=(chromium)
packages=(chromium fonts-dejavu-core)

work() {
    cat >page.html <<'END'
<!doctype html>
<meta charset="utf-8">
<p id="out"></p>
<script>
const lines = [];
for (const tag of ['ar', 'bn', 'de', 'el', 'en', 'es', 'fa', 'fi', 'fr', 'he', 'hi', 'hu', 'it', 'ja', 'ko', 'ml', 'pl', 'pt', 'ru', 'sw',
    'ta', 'te', 'th', 'tr', 'uk', 'vi', 'zh']) {
    const words = ['zebra', 'Äpfel', 'ñandú', 'çok', '日本', 'ไทย', 'אבג', 'мир'];
    lines.push([tag,
        new Intl.DateTimeFormat(tag, {dateStyle: 'full', timeZone: 'UTC'}).format(new Date(Date.UTC(2024, 1, 29, 12))),
        new Intl.NumberFormat(tag, {style: 'currency', currency: 'JPY', currencyDisplay: 'name'}).format(1234567.8),
        new Intl.DisplayNames(tag, {type: 'region'}).of('CH'),
        new Intl.ListFormat(tag).format(words.sort(new Intl.Collator(tag).compare))].join(' | '));
}
for (const [tag, text] of [['th', 'ภาษาไทยไม่มีช่องว่าง'], ['ja', '日本語の文章を単語に分ける'], ['zh', '我们在这里写一些中文']])
    lines.push(Array.from(new Intl.Segmenter(tag, {granularity: 'word'}).segment(text), part => part.segment).join('/'));
document.getElementById('out').innerText = lines.join('\n');
</script>
END
    local browser=(chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
        --disable-component-update --disable-sync)
    serve 30 --map icudtl.dat --map '*.pak'
    under "${browser[@]}" --user-data-dir="$PWD/one" --screenshot="$PWD/shot.png" "file://$PWD/page.html"
    digest shot.png
    under "${browser[@]}" --user-data-dir="$PWD/two" --dump-dom "file://$PWD/page.html" | tee document | digest
    wc -l <document
    under "${browser[@]}" --user-data-dir="$PWD/three" --single-process --dump-dom "file://$PWD/page.html" | digest
}
