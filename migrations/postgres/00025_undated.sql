-- What is not known to be undamaged since any time, the proofs of parity, and what repairs have put back. Binaries of version 2 can
-- work with this schema: their rebuilds let what they find count as stored at that time, and their scrubbers read no parity.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (25, 2);
-- When the proofs were last forgotten, because the index was rebuilt; 0: never. What was noted until then, and is not proven since,
-- was stored at a time that is not known.
ALTER TABLE scrub ADD COLUMN forgotten bigint NOT NULL DEFAULT 0;
UPDATE scrub SET forgotten = CAST(extract(epoch FROM now()) * 1000000 AS bigint) WHERE EXISTS (SELECT 1 FROM packs);

-- The proofs of the parity objects of a group, as in journal_proofs.
ALTER TABLE parity_groups
    ADD COLUMN noted   bigint NOT NULL DEFAULT 0,  -- when the group became valid
    ADD COLUMN proven  bigint NOT NULL DEFAULT 0,  -- when the last proof of all its parity objects was begun; 0: never
    ADD COLUMN begun   bigint NOT NULL DEFAULT 0,  -- when the proof in progress was begun; 0: there is none
    ADD COLUMN reached bigint NOT NULL DEFAULT 0,  -- how many objects that has read
    ADD COLUMN damaged bigint NOT NULL DEFAULT 0,  -- objects that the last proof, or the one in progress, has found to be damaged
    ADD COLUMN damage  text   NOT NULL DEFAULT ''; -- the first of them
-- Groups of before are undated, too. Their milliseconds differ, so that they are not all due at once.
UPDATE parity_groups SET noted = (SELECT forgotten FROM scrub) - n * 1000
FROM (SELECT id AS one, row_number() OVER (ORDER BY id) AS n FROM parity_groups) AS numbers WHERE id = one;

-- What repairs have put back in all.
CREATE TABLE put_back (
    source  text   NOT NULL PRIMARY KEY, -- parity or mirror
    objects bigint NOT NULL,
    bytes   bigint NOT NULL,
    last    bigint NOT NULL              -- when; 0: never
);
INSERT INTO put_back (source, objects, bytes, last) VALUES ('parity', 0, 0, 0), ('mirror', 0, 0, 0);

-- +goose Down
DROP TABLE put_back;
ALTER TABLE parity_groups DROP COLUMN damage, DROP COLUMN damaged, DROP COLUMN reached, DROP COLUMN begun, DROP COLUMN proven, DROP COLUMN noted;
ALTER TABLE scrub DROP COLUMN forgotten;
DELETE FROM schema_versions WHERE version = 25;
