// Package transcripttest plays transcripts: text files of calls and their results, which tests replay and people read.
// Lines that begin with a word are calls, indented lines are results, and lines with # are for the reader. Tests of
// node/delivery and node/machine use it. It imports only the standard library.
package transcripttest
