"""`trtint8 <verb>`: one small file per verb."""
