//go:build linux

// Command bench measures bctl beside other backup programs: those on the PATH,
// on the same tree, in the same run.
//
//	bench -preset million20,big          makes the trees, and measures everything
//	bench -sections trees,codecs         only these sections
//	bench -tree DIR -sections trees      measures on a tree that is there (never changed: no churn)
//	bench -floor walk|store:FILE|packs DIR   the bare work, which no backup can be much faster than
//
// Section trees has as steps a first backup into a new repository, a backup of the unchanged
// tree, a restore into a new directory, and a backup after 1% of the files have
// changed. A step is run in rounds. Each round runs all tools, and begins with a different one, so
// that other load of the machine affects all of them. The report has the medians over the rounds,
// and the medians of the ratios to bctl within each round, which vary less than the times. The
// other sections (section.go lists them) have their own steps; each ends with its criteria.
//
// For each run it measures wall seconds, CPU seconds (user and system, with children, by wait4),
// the peak of resident memory of the largest process (by wait4, which never reports less than this
// program has itself), and the bytes of the repository on disk. The page cache is warm. For a
// fleet, it adds what the services and servers have used meanwhile (from /proc).
//
// Each restore writes to a new file system in a file, if this process may mount one (as root). The
// repositories of a round are removed before the next round.
package main
