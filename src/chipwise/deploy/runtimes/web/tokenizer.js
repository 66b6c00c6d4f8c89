// The byte-level BPE of a tokenizer.json: text to tokens and back.
const PIECES =
  /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const plain = (byte) => (byte > 32 && byte < 127) || (byte > 160 && byte !== 173);
const LETTERS = []; // of each byte: itself if it can be printed, else one after the 255 first characters
for (let byte = 0, others = 256; byte < 256; byte++) {
  LETTERS.push(String.fromCharCode(plain(byte) ? byte : others++));
}
const BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

export class Tokenizer {
  constructor({ model, added_tokens: added = [], normalizer }) {
    this.normal = (text) => (normalizer ? text.normalize("NFC") : text);
    this.vocab = new Map(Object.entries(model.vocab));
    this.texts = new Map([...this.vocab].map(([text, token]) => [token, text]));
    this.ranks = new Map(model.merges.map((merge, rank) => [Array.isArray(merge) ? merge.join(" ") : merge, rank]));
    this.added = new Map(added.map((token) => [token.content, token.id]));
    for (const token of this.added.values()) this.texts.delete(token);
    const quoted = [...this.added.keys()].map((text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
    this.special = quoted.length ? new RegExp(`(${quoted.join("|")})`) : null;
  }

  encode(text) {
    const parts = this.special ? text.split(this.special) : [text];
    return parts.flatMap((part) => (this.added.has(part) ? [this.added.get(part)] : this.words(part)));
  }

  words(text) {
    const bytes = (piece) => Array.from(new TextEncoder().encode(piece), (byte) => LETTERS[byte]);
    return (this.normal(text).match(PIECES) ?? []).flatMap((piece) => this.merged(bytes(piece)).map((part) => this.vocab.get(part)));
  }

  merged(parts) { // the pair that was learnt first is merged first
    for (;;) {
      let best = Infinity, place = -1;
      for (let i = 0; i + 1 < parts.length; i++) {
        const rank = this.ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, place] = [rank, i];
      }
      if (place < 0) return parts;
      parts.splice(place, 2, parts[place] + parts[place + 1]);
    }
  }

  decoder() { // tokens one by one to text: whole characters only
    const bytes = new TextDecoder();
    return (token) => bytes.decode(Uint8Array.from(this.texts.get(token) ?? "", (letter) => BYTES.get(letter)), { stream: true });
  }
}
