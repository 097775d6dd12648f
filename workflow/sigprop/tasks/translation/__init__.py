"""Parallel text: archives, corpora, cleaning, subwords, batches and BLEU."""
