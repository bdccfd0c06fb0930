//go:build linux

// Command bench measures bctl beside other backup programs: those on the PATH,
// on the same tree, in the same run.
//
//	bench -preset million20,big          makes the trees, and measures everything
//	bench -sections trees,codecs         only these sections
//	bench -tree DIR -sections trees      measures on a tree that is there (never changed: no churn)
//	bench -floor walk|store:FILE DIR     the bare work, which no backup can be much faster than
//
// Section trees has as steps a first backup into a new repository, a backup of the unchanged
// tree, a restore into a new directory, and a backup after 1% of the files have
// changed. A step is run in rounds, all tools in each round, the first of them
// another in each: what else the machine does meets all of them. What is
// reported are medians over the rounds, and the medians of the rounds' ratios
// to bctl, which vary less than seconds do. The other sections (section.go
// lists them) have their own steps; each ends with its criteria.
//
// Of each run it takes wall seconds, CPU seconds (user and system, children included, by wait4),
// the peak of resident memory of the largest process (the same; what the kernel reports is never
// less than this program has itself) and the bytes that the repository takes up on disk. The page
// cache is warm. Of a fleet, whose services and servers run beside the commands, it takes what they
// have used meanwhile (from /proc), too.
//
// Each restore goes to a file system of its own, made for it in a file, where one can be mounted
// (it takes root); the repositories of one round make room for those of the next.
package main
