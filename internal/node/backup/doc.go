// Package backup writes, checks and restores backups of data directories.
//
//	engine.Backup ─► Writer ─► backup directory ─► Restore ─► new data directory
//	stopped node  ─► Copy   ─┘
//
// A backup is a directory with the files of a data directory that a restart needs, under the same names, and a manifest
// with the size and checksum of each. FORMAT.md describes the manifest. It is written last, when everything else is on
// stable storage: a directory without a manifest is no backup. What the files contain is the business of package
// engine; this package knows which files a restore must change, and which batches segments must hold.
//
// The Writer links a file into the backup if nobody will change it and both directories are on one file system, and
// copies it otherwise. A linked file is the node's own file under a second name: bit rot hits both. The node never
// writes to a file that has a second name: a repair goes to a copy, and leaves the backup as it was. Restore only
// copies, so that the restored node never writes to a file of the backup or of another node.
//
// Both ways verify every batch of the segments while they copy them (segment.FileVerifier). The manifest names what did
// not verify, so that damage which nobody had noticed does not become a good backup. Restore verifies again. If
// anything differs it names all of it and restores nothing, or it restores the rest, for a caller who accepts the loss,
// and the new directory has a list of the damaged places (datadir.DamagedFile).
//
// A crash leaves a directory without a manifest, and never changes the data directory.
package backup
