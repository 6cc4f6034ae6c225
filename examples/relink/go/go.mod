module relinkpublish

go 1.19
