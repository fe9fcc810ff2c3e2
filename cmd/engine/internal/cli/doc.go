// Package cli is what the groups of commands share: Operator, which asks a running node, with its flags and answers;
// exit codes; help, completion and errors about command lines; tables, and questions before what cannot be taken back;
// and the numbers of topics and channels, added up over the nodes of a cluster. All packages of commands use it. It
// imports none of them.
package cli
